"""What the modules that are compiled must keep to, beyond what mypyc refuses by itself: see docs/decisions/0009."""

import ast
import os
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

import hatch_build

ROOT = Path(__file__).parents[2]
WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
PATTERNS = WHEEL["hooks"]["custom"]["modules"]
MODULES = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern))


def slotted(text: str) -> list[str]:
    """The classes that a decorator makes anew with slots: beside a compiled class that crashes."""
    return [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call)
        if any(keyword.arg == "slots" for keyword in decorator.keywords)
    ]


def test_every_pattern_names_modules() -> None:
    """A folder that was renamed must not fall out of the compiled part unseen."""
    assert all(any(ROOT.glob(pattern)) for pattern in PATTERNS)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_compiled_classes_are_not_made_anew(path: Path) -> None:
    """No dataclass of a compiled module asks for slots."""
    assert slotted(path.read_text(encoding="utf-8")) == []


def test_a_slotted_class_is_found() -> None:
    """The check sees the option among others, and no other option."""
    assert slotted("@dataclass(frozen=True, slots=True)\nclass A: ...\n@dataclass(frozen=True)\nclass B: ...\n") == ["A"]


def test_what_runs_here_is_what_should() -> None:
    """Tests of the source run on source, and those of the product on compiled modules wherever they can be had."""
    found = [find_spec(".".join(path.relative_to(ROOT / "src").with_suffix("").parts)) for path in MODULES if path.name != "__init__.py"]
    compiled = {spec is not None and not str(spec.origin).endswith(".py") for spec in found}
    wanted = os.environ.get("FAIRLANE_INSTALLED") == "1" and hatch_build.obstacle() is None and os.environ.get(hatch_build.CHOICE) != "0"
    assert compiled == {wanted}
