"""Traces from files: what is read, and what is refused with its place."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from fairlane.sim.load.traces import Row, TraceError, read

HEADER = "t,input_tokens,output_tokens"


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_plain_and_packed_traces_are_read(tmp_path: Path, name: str) -> None:
    """Columns may stand in any order beside others; times count from the first row; nothing counts less than one token."""
    text = "tenant,output_tokens,other,t,input_tokens,class\nx,5,?,10.5,7,paid\n,0,?,10.5,0,\n\ny,1,?,12,9.0,batch\n"
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    assert read(path) == [Row(0.0, 7, 5, "x", "paid"), Row(0.0, 1, 1, None, None), Row(1.5, 9, 1, "y", "batch")]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "line 1: missing column t, input_tokens, output_tokens"),
        ("t,output_tokens\n1,2\n", "line 1: missing column input_tokens"),
        (f"{HEADER}\n", "line 2: there are no requests"),
        (f"{HEADER}\n0,1,2\n1,x,2\n", "line 3, column 2 (input_tokens): 'x' is not a number"),
        (f"{HEADER}\n0,1,-2\n", "line 2, column 3 (output_tokens): -2 must be finite and not negative"),
        (f"{HEADER}\n-1,1,2\n", "line 2, column 1 (t): -1 must be finite and not negative"),
        (f"{HEADER}\nnan,1,2\n", "line 2, column 1 (t): nan must be finite and not negative"),
        (f"{HEADER}\n0,1,inf\n", "line 2, column 3 (output_tokens): inf must be finite and not negative"),
        (f"{HEADER}\n0,1.5,2\n", "line 2, column 2 (input_tokens): 1.5 is not a whole number"),
        (f"{HEADER}\n0,1\n", "line 2, column 3 (output_tokens): is missing"),
        (f"{HEADER}\n5,1,2\n6,1,2\n5.5,1,2\n", "line 4, column 1 (t): 5.5 comes after 6: times must not fall"),
        (f'{HEADER}\n0,"1\n",2\n1,2,""\n', "line 4, column 3 (output_tokens): '' is not a number"),
    ],
)
def test_a_bad_trace_is_refused_with_its_place(tmp_path: Path, text: str, place: str) -> None:
    """The first fault is told with file, line and column."""
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as error:
        read(path)
    assert str(error.value) == f"{path}{', ' if place.startswith('line') else ': '}{place}"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv.gz", b"plain"),
        ("b.csv.gz", gzip.compress(HEADER.encode(), mtime=0)[:-9]),
        ("c.csv", b"\xff\xfe"),
        ("d.csv", None),
        ("e.csv", b"a\0b\r"),
    ],
)
def test_what_is_no_trace_at_all_is_refused(tmp_path: Path, name: str, content: bytes | None) -> None:
    """Files that are missing, cut short, packed wrongly or no text are refused by their name, not with a traceback."""
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TraceError, match=str(path)):
        read(path)
