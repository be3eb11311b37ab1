"""The command: rows for programs, tables for people, a picture, and refusals of what makes no sense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from fairlane.cli import main
from fairlane.sim.figures.measures import Figures
from fairlane.sim.figures.plot import svg
from fairlane.sim.figures.report import row, text
from fairlane.sim.load.workload import CLASSES

KEYS = [
    "policy", "goodput", "attainment", "share", "share_p5", "ttft_s", "jain", "wasted_ratio", "preemptions", "yields",
    "false_shed_ratio", "retry_after_error_s", "recovery_s",
]  # fmt: skip
SHORT = ["simulate", "--duration", "20", "--seeds", "1"]


def rows(capsys: pytest.CaptureFixture[str], *args: str) -> list[dict[str, Any]]:
    """What the command prints as JSON."""
    assert main([*SHORT, "--json", *args]) == 0
    printed: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return printed


def test_json_has_a_row_for_each_policy_with_exactly_these_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows come in the order asked for; objects by class are in rank order."""
    found = rows(capsys, "--policy", "strict,gmp,none", "--load", "1.5")
    assert [r["policy"] for r in found] == ["strict", "gmp", "none"]
    for r in found:
        assert list(r) == KEYS
        assert all(list(r[key]) == list(CLASSES) for key in ("attainment", "share", "share_p5", "ttft_s", "jain"))
        assert all(list(r["ttft_s"][name]) == ["p50", "p95", "p99"] for name in CLASSES)
        assert r["goodput"] > 0


def test_processes_change_nothing_but_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Two processes find what one finds."""
    args = ("--policy", "gmp,fifo", "--surge", "realtime=3", "--no-limiter", "--no-shed")
    assert rows(capsys, *args, "--jobs", "2") == rows(capsys, *args)


def test_tables_and_picture_show_every_policy(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """People see each policy and class in the tables; the picture is well-formed and names the policies."""
    picture = tmp_path / "out.svg"
    assert main([*SHORT, "--policy", "gmp,drr", "--plot", str(picture)]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("gmp", "drr", *CLASSES, "goodput", "attainment"))
    texts = [e.text for e in ET.fromstring(picture.read_text()).iter("{http://www.w3.org/2000/svg}text")]
    assert {"gmp", "drr", *CLASSES} <= set(texts)


def test_a_trace_file_is_played(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A trace that an engine serves with ease attains everything."""
    path = tmp_path / "t.csv"
    path.write_text("t,input_tokens,output_tokens\n" + "".join(f"{i},200,20\n" for i in range(60)))
    (found,) = rows(capsys, "--trace", str(path))
    assert {value for value in found["attainment"].values() if value is not None} == {1.0}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--policy", "gmp,magic"], "unknown policy 'magic'"),
        (["--seeds", "0", "--jobs", "0"], "--seeds must be at least 1\n--jobs must be at least 1"),
        (["--disconnect", "2"], "--disconnect must be between 0 and 1"),
        (["--trace", "nowhere"], "nowhere: no such file"),
    ],
)
def test_wishes_without_sense_are_refused(capsys: pytest.CaptureFixture[str], args: list[str], said: str) -> None:
    """The command ends with 2 and says what was wrong before anything runs."""
    assert main(["simulate", *args]) == 2
    assert said in capsys.readouterr().err


def test_a_bad_trace_ends_the_command_with_its_place(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The command ends with 2, prints nothing, and names file, line and column."""
    path = tmp_path / "bad.csv"
    path.write_text("t,input_tokens,output_tokens\n0,1,1\n0,-5,1\n")
    assert main(["simulate", "--trace", str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"{path}, line 3, column 2 (input_tokens): -5" in said.err


@pytest.mark.parametrize("surge", ["vip=3", "realtime", "realtime=-1"])
def test_a_wrong_surge_is_refused(surge: str) -> None:
    """A surge names a class that there is and a positive factor."""
    with pytest.raises(SystemExit) as stop:
        main(["simulate", "--surge", surge])
    assert stop.value.code == 2


@pytest.mark.parametrize("slots", ["0", "-1", "many", "1.5"])
def test_slots_are_a_number_or_auto(slots: str) -> None:
    """The command refuses the rest."""
    with pytest.raises(SystemExit) as stop:
        main(["simulate", "--slots", slots])
    assert stop.value.code == 2


def made(goodput: float, recovery: float | None) -> Figures:
    """Figures that differ in two numbers."""
    times: dict[str, float | None] = {"p50": 1.0, "p95": None, "p99": 3.0}
    return Figures(goodput, [0.5] * 4, [0.25] * 4, [None] * 4, [times] * 4, [1.0] * 4, 0.1, 7, 2, None, 2.0, recovery)


def test_rows_are_medians_over_seeds() -> None:
    """A row holds the middle of the seeds, of those that have the figure; null where none has."""
    found = row("gmp", [made(10.0, None), made(30.0, 4.0), made(11.00004, 8.0)])
    assert found["goodput"] == 11.0
    assert found["recovery_s"] == 6.0
    assert found["false_shed_ratio"] is None
    assert found["ttft_s"]["paid"] == {"p50": 1.0, "p95": None, "p99": 3.0}


def test_the_table_tells_the_spread() -> None:
    """Beside the median stands half the way from the least to the greatest; one seed has no spread, and nothing is a dash."""
    table = text([("gmp", [made(10.0, None), made(30.0, None), made(11.0, None)])])
    assert "11 ± 10" in table
    assert " -\n" in table
    assert "±" not in text([("gmp", [made(10.0, 5.0)])])


def test_a_picture_of_nothing_is_still_a_picture() -> None:
    """Policies that served nothing, or none at all, leave empty panels."""
    for some in ([], [row("<a&b>", [made(0.0, None)])]):
        assert ET.fromstring(svg(some)).tag.endswith("svg")
