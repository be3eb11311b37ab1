"""Recorded requests from a file: `.csv` or `.csv.gz` with the columns t, input_tokens, output_tokens and, where known, tenant and class.

`t` is in seconds and never falls. A file that is not like that is refused whole, with the place of the first fault, because a
trace that is half understood gives figures that look right.
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TextIO

from fairlane.errors import FairlaneError

REQUIRED = ("t", "input_tokens", "output_tokens")


class TraceError(FairlaneError):
    """A trace cannot be used; the text says where and why."""


class Row(NamedTuple):
    """One recorded request. A request without a token on either side counts as one with a single token there."""

    t: float
    prompt_tokens: int
    output_tokens: int
    tenant: str | None
    class_name: str | None


class Cells:
    """One line of a trace, its cells by the names of their columns."""

    __slots__ = ("_columns", "_line", "_path", "_values")

    def __init__(self, path: Path, line: int, columns: Mapping[str, int], values: list[str]) -> None:
        self._path = path
        self._line = line
        self._columns = columns
        self._values = values

    def text(self, name: str) -> str | None:
        """What stands in a column; None where it is empty or there is no such column."""
        if name not in self._columns:
            return None
        if self._columns[name] >= len(self._values):
            raise self.fault(name, "is missing")
        return self._values[self._columns[name]].strip() or None

    def number(self, name: str) -> float:
        """A number of at least zero."""
        text = self.text(name) or ""
        try:
            value = float(text)
        except ValueError:
            raise self.fault(name, f"{text!r} is not a number") from None
        if not math.isfinite(value) or value < 0:
            raise self.fault(name, f"{text} must be finite and not negative")
        return value

    def tokens(self, name: str) -> int:
        """A whole number of tokens, none counting as one."""
        value = self.number(name)
        if value != int(value):
            raise self.fault(name, f"{self.text(name)} is not a whole number")
        return max(1, int(value))

    def fault(self, name: str, text: str) -> TraceError:
        """The error that a cell is, with its place."""
        return TraceError(f"{self._path}, line {self._line}, column {self._columns[name] + 1} ({name}): {text}")


def read(path: Path) -> list[Row]:
    """All requests of a trace, with times counted from the first one."""
    rows = [
        Row(line.number("t"), line.tokens("input_tokens"), line.tokens("output_tokens"), line.text("tenant"), line.text("class"))
        for line in lines(path)
    ]
    begin = rows[0].t
    return [row._replace(t=row.t - begin) for row in rows]


def lines(path: Path) -> Iterator[Cells]:
    """The lines of a trace, one at least, in the order of their times."""
    try:
        with _open(path) as file:
            yield from _lines(path, file)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: is not UTF-8: {error.reason}") from error
    except csv.Error as error:
        raise TraceError(f"{path}: is not CSV: {error}") from error


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _lines(path: Path, file: TextIO) -> Iterator[Cells]:
    reader = csv.reader(file)
    header = [name.strip() for name in next(reader, [])]
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise TraceError(f"{path}, line 1: missing column {', '.join(missing)}")
    columns = {name: header.index(name) for name in header}
    before = -math.inf
    for values in reader:
        if not values:
            continue
        line = Cells(path, reader.line_num, columns, values)
        t = line.number("t")
        if t < before:
            raise line.fault("t", f"{t:.15g} comes after {before:.15g}: times must not fall")
        before = t
        yield line
    if before == -math.inf:
        raise TraceError(f"{path}, line 2: there are no requests")
