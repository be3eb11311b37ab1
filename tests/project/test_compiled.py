"""What the modules that are compiled must keep to, beyond what mypyc refuses by itself: see docs/decisions/0009."""

import ast
import tomllib
from pathlib import Path

import pytest

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
