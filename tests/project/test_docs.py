"""Documents that cannot lie: what they name exists, and what exists is named."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fairlane.errors import RULES, Reason

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def names(path: Path) -> str:
    """A page's place in the project, as the test's id."""
    return str(path.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """The fragments that a page's headings can be reached by."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """Links of a page to files or headings of this project that are not there."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        path = page.parent / name if name else page
        if not path.exists() or (fragment and fragment not in anchors(path)):
            broken.append(target)
    return broken


def test_readme_is_short_and_starts_people_off() -> None:
    """The README fits in one reading and shows the two commands that matter."""
    assert len(README.splitlines()) < 120
    assert "make serve" in README
    assert "make test" in README


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link, with its heading if it names one, has a target in the project."""
    assert broken_links(page) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    """A missing file and a missing heading are both found, and good links are left alone."""
    page = tmp_path / "page.md"
    page.write_text("# A heading, here\n[a](gone.md) [b](#a-heading-here) [c](page.md#elsewhere) [d](https://example.org) [e](page.md)\n")
    assert broken_links(page) == ["gone.md", "page.md#elsewhere"]


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_make_targets_exist(page: Path) -> None:
    """Every `make TARGET` that a page shows is in the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:^|[`$] ?)make ([a-z]+(?:-[a-z]+)*)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert named <= targets


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_documented(reason: Reason) -> None:
    """A client can look up each code that it may see, with the status it comes with."""
    rule = RULES[reason]
    page = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
    assert f"\n| `{reason}` | {rule.status} | `{rule.error_type}` | {rule.family} | {'yes' if rule.retryable else 'no'} |" in page


def test_table_of_reasons_is_the_generated_one() -> None:
    """`make docs` has nothing to change in docs/http.md."""
    assert subprocess.run([sys.executable, ROOT / "scripts" / "reasons.py", "--check"], check=False, timeout=30).returncode == 0


def test_metrics_in_the_readme_exist() -> None:
    """The README names no metric that the reference does not have."""
    reference = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    named = set(re.findall(r"fairlane_[a-z_]+", README))
    assert named
    assert {name for name in named if f"`{name}" not in reference} == set()
