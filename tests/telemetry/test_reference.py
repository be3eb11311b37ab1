"""The page on metrics says what the table says."""

import subprocess
import sys
from pathlib import Path

from fairlane.telemetry.table import TABLE

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_is_what_the_command_prints() -> None:
    """docs/metrics.md is generated, and not edited since."""
    printed = subprocess.run([sys.executable, "-m", "fairlane.telemetry.reference"], check=True, capture_output=True, text=True)
    assert PAGE.read_text() == printed.stdout


def test_every_metric_is_on_the_page() -> None:
    """Each row has its name, type and labels there."""
    lines = PAGE.read_text().splitlines()
    for row in TABLE:
        (line,) = (line for line in lines if line.startswith(f"| `{row.name}` |"))
        assert f"| {row.kind} |" in line
        assert all(f"`{label}`" in line for label in row.labels)


def test_names_follow_the_conventions_of_prometheus() -> None:
    """Base units and types are told by the ends of names."""
    for row in TABLE:
        assert row.name.startswith("fairlane_")
        assert (row.kind == "counter") == row.name.endswith("_total")
        assert row.kind != "histogram" or row.name.endswith("_seconds")
        assert row.help.endswith(".")
        assert not row.name.endswith(("_ms", "_percent"))
