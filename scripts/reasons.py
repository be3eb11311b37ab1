"""Writes the table of reasons into docs/http.md, from `fairlane.errors.RULES`; with `--check` it only compares.

The page keeps its text: what stands between the two marks is replaced.
"""

import sys
from pathlib import Path

from fairlane.errors import RULES, Family, Reason, Rule

PAGE = Path(__file__).parent.parent / "docs" / "http.md"
BEGIN = "<!-- reasons: written by `make docs` -->\n"
END = "<!-- end of reasons -->\n"


def row(reason: Reason, rule: Rule) -> str:
    """One line of the table."""
    retry = "yes" if rule.retryable else "no"
    return f"| `{reason}` | {rule.status} | `{rule.error_type}` | {rule.family} | {retry} | {rule.text} |\n"


def table() -> str:
    """All reasons, by family in the order of a request's way, and within it as `RULES` has them."""
    head = "| `error.code` | status | `error.type` | family | retry helps | `error.message`, unless there is more to say |\n"
    families = list(Family)
    rows = sorted(RULES.items(), key=lambda item: families.index(item[1].family))
    return head + "|---|---|---|---|---|---|\n" + "".join(row(*item) for item in rows)


def filled(page: str) -> str:
    """The page with the present table between its marks."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


def main(arguments: list[str]) -> int:
    """Status 1 says that `--check` found another table than the code has."""
    page = PAGE.read_text(encoding="utf-8")
    if "--check" in arguments:
        return int(page != filled(page))
    PAGE.write_text(filled(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
