"""The sizes that keep this code readable, as a ratchet.

Whatever is larger than its limit stands in `EXCEPTIONS` by name and size. The list may only shrink: an entry that is no longer
needed, or larger than the thing it excuses, fails as well.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMITS = {"lines of function": 50, "lines of file": 400, "files in folder": 12, "public methods of": 10, "positional parameters of": 5}
CORE_LINES = 1500
EXCEPTIONS: dict[str, int] = {"public methods of src/fairlane/core/scheduler.py:Scheduler": 11}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def positional(function: Function) -> int:
    """How many arguments a caller may pass by place, `self` and `cls` aside; a test's come by name."""
    if function.name.startswith("test_"):
        return 0
    names = [a.arg for a in function.args.posonlyargs + function.args.args]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def is_method(node: ast.stmt) -> bool:
    """Whether a statement of a class body is a public method; a property reads as an attribute and is none."""
    return isinstance(node, Function) and not node.name.startswith("_") and "property" not in map(ast.unparse, node.decorator_list)


def measures(path: str, text: str) -> Iterator[tuple[str, int]]:
    """Name and size of everything in one file that has a limit."""
    yield f"lines of file {path}", len(text.splitlines())
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Function):
            yield f"lines of function {path}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1
            yield f"positional parameters of {path}:{node.name}", positional(node)
        elif isinstance(node, ast.ClassDef) and not path.startswith("tests/"):  # the rules of a state machine are no interface
            yield f"public methods of {path}:{node.name}", sum(map(is_method, node.body))


def oversize(files: dict[str, str]) -> dict[str, int]:
    """All that is over its limit in these files (path and text); of several with one name the largest."""
    found: dict[str, int] = {}
    sizes = [size for path, text in files.items() for size in measures(path, text)]
    sizes += [(f"files in folder {folder}", n) for folder, n in Counter(str(Path(path).parent) for path in files).items()]
    for name, size in sizes:
        if any(name.startswith(kind) and size > limit for kind, limit in LIMITS.items()):
            found[name] = max(size, found.get(name, 0))
    return found


def tree(*folders: str) -> dict[str, str]:
    """The project's Python files, by path from its root."""
    paths = [p for folder in folders for p in sorted((ROOT / folder).rglob("*.py"))]
    return {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in paths}


def test_nothing_is_larger_than_its_limit_or_its_exception() -> None:
    """What is over a limit is exactly what the list excuses, at exactly the listed size."""
    assert oversize(tree("src", "tests", "bench", "scripts")) == EXCEPTIONS


def test_the_core_stays_small() -> None:
    """The scheduler can be read in one sitting."""
    assert sum(len(text.splitlines()) for text in tree("src/fairlane/core").values()) <= CORE_LINES


METHODS = "".join(f"    def m{i}(self, a, b, c, d, e): ...\n" for i in range(11))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a.py": "x = 1\n" * 401}, {"lines of file a.py": 401}),
        ({"a.py": "def f():\n" + "    x = 1\n" * 50}, {"lines of function a.py:f": 51}),
        ({"a.py": "async def f(a, b, /, c, d, e, f=1, *, g=2): ..."}, {"positional parameters of a.py:f": 6}),
        ({"a.py": "class A:\n" + METHODS + "    @property\n    def p(self): ...\n"}, {"public methods of a.py:A": 11}),
        ({f"d/{i}.py": "" for i in range(13)}, {"files in folder d": 13}),
        ({f"d/{i}.py": "x = 1\n" * 400 for i in range(12)}, {}),
    ],
    ids=["file", "function", "parameters", "methods", "folder", "at the limits"],
)
def test_each_limit_is_seen(files: dict[str, str], expected: dict[str, int]) -> None:
    """The measure itself tells what is one over a limit from what is just on it."""
    assert oversize(files) == expected
