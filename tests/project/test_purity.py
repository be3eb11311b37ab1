"""The core and the policies are pure, so that the gateway, a simulator and a test run the very same scheduler.

`lint-imports` forbids what it is told to forbid; this test allows what is listed and nothing else, so a new third party or a
module that reads clocks cannot slip in unnamed.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "fairlane"
PURE = {
    "__future__", "abc", "array", "bisect", "collections", "copy", "dataclasses", "enum", "fractions", "functools", "hashlib", "heapq",
    "itertools", "json", "math", "operator", "re", "statistics", "struct", "types", "typing", "unicodedata",
}  # fmt: skip


def imported(text: str) -> Iterator[str]:
    """The top-level names of all modules that a source imports, wherever in it; relative ones count as our own."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "fairlane" if node.level else (node.module or "").partition(".")[0]


def impure(text: str) -> set[str]:
    """What a pure module may not import."""
    return set(imported(text)) - PURE - {"fairlane"}


@pytest.mark.parametrize(
    "path",
    sorted([*PACKAGE.glob("core/**/*.py"), *PACKAGE.glob("policies/**/*.py"), *PACKAGE.glob("predict/**/*.py"), PACKAGE / "errors.py"]),
    ids=str,
)
def test_pure_layers_import_only_pure_modules(path: Path) -> None:
    """Nothing in the pure layers can read a clock, draw a random number, do I/O or call a third party."""
    assert impure(path.read_text(encoding="utf-8")) == set()


def test_an_import_is_seen_wherever_it_hides() -> None:
    """The check looks into functions and at every spelling of an import."""
    source = "import os.path\ndef f():\n    from time import monotonic\n    import math, orjson\nfrom . import x\n"
    assert impure(source) == {"os", "time", "orjson"}


def test_the_pure_modules_belong_to_python() -> None:
    """The list of what is allowed names the standard library alone."""
    assert set(sys.stdlib_module_names) >= PURE
