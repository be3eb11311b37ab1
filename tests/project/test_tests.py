"""Each test says in one sentence what it holds."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def unexplained(text: str) -> list[str]:
    """The tests of a source that have no docstring, or one that is no sentence."""
    functions = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return [f.name for f in functions if f.name.startswith("test_") and not (ast.get_docstring(f) or "").strip().endswith((".", "?"))]


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda p: str(p.relative_to(TESTS)))
def test_every_test_says_what_it_holds(path: Path) -> None:
    """No test leaves its reader to guess what its failure would mean."""
    assert unexplained(path.read_text(encoding="utf-8")) == []


def test_a_silent_test_is_seen() -> None:
    """Tests without a docstring or without a sentence are found, in classes too; other functions need none."""
    source = 'def test_a(): ...\nclass T:\n    def test_b(self):\n        "words"\ndef help_(): ...\ndef test_c():\n    "A sentence."\n'
    assert unexplained(source) == ["test_a", "test_b"]
