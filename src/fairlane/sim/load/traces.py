"""Recorded requests from a file: `.csv` or `.csv.gz` with the columns t, input_tokens, output_tokens and, where known, tenant and class.

`t` is in seconds and never falls. A file that is not like that is refused whole, with the place of the first fault, because a
trace that is half understood gives figures that look right.
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Iterator
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


def read(path: Path) -> list[Row]:
    """All requests of a trace, with times counted from the first one."""
    try:
        with _open(path) as lines:
            rows = list(_rows(path, lines))
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: is not UTF-8: {error.reason}") from error
    except csv.Error as error:
        raise TraceError(f"{path}: is not CSV: {error}") from error
    if not rows:
        raise TraceError(f"{path}, line 2: there are no requests")
    begin = rows[0].t
    return [row._replace(t=row.t - begin) for row in rows]


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _rows(path: Path, lines: TextIO) -> Iterator[Row]:
    reader = csv.reader(lines)
    header = [name.strip() for name in next(reader, [])]
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise TraceError(f"{path}, line 1: missing column {', '.join(missing)}")
    columns = {name: header.index(name) for name in (*REQUIRED, "tenant", "class") if name in header}
    before = -math.inf
    for cells in reader:
        if not cells:
            continue
        row = _row(path, reader.line_num, cells, columns)
        if row.t < before:
            raise _fault(path, reader.line_num, columns, "t", f"{row.t:.15g} comes after {before:.15g}: times must not fall")
        before = row.t
        yield row


def _row(path: Path, line: int, cells: list[str], columns: dict[str, int]) -> Row:
    def cell(name: str) -> str:
        if columns[name] >= len(cells):
            raise _fault(path, line, columns, name, "is missing")
        return cells[columns[name]].strip()

    def number(name: str) -> float:
        try:
            value = float(cell(name))
        except ValueError:
            raise _fault(path, line, columns, name, f"{cell(name)!r} is not a number") from None
        if not math.isfinite(value) or value < 0:
            raise _fault(path, line, columns, name, f"{cell(name)} must be finite and not negative")
        return value

    def tokens(name: str) -> int:
        value = number(name)
        if value != int(value):
            raise _fault(path, line, columns, name, f"{cell(name)} is not a whole number")
        return max(1, int(value))

    tenant, class_name = ((cell(name) or None) if name in columns else None for name in ("tenant", "class"))
    return Row(number("t"), tokens("input_tokens"), tokens("output_tokens"), tenant, class_name)


def _fault(path: Path, line: int, columns: dict[str, int], name: str, text: str) -> TraceError:
    return TraceError(f"{path}, line {line}, column {columns[name] + 1} ({name}): {text}")
