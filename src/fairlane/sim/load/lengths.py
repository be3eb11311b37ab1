"""Where lengths of prompts and answers come from: small tables of real pairs that ship with the package.

Each table is a systematic sample of a public trace (`data/README.md`), so a draw keeps the joint distribution.
"""

from __future__ import annotations

import gzip
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class Length(NamedTuple):
    """Tokens of one request."""

    prompt_tokens: int
    output_tokens: int


class TableFacts(NamedTuple):
    """What the trace behind a table says of its arrivals: requests per second, and the coefficient of variation of gaps."""

    rate_per_s: float
    cv: float


TABLES = {
    "azure2023_conv": TableFacts(5.89, 1.07),
    "azure2023_code": TableFacts(3.01, 12.6),
    "mooncake": TableFacts(3.33, 3.0),
}


@cache
def table(name: str) -> tuple[Length, ...]:
    """The pairs of a table that ships."""
    packed = files("fairlane.sim").joinpath("data", f"{name}.csv.gz").read_bytes()
    rows = gzip.decompress(packed).decode("ascii").splitlines()[1:]
    return tuple(Length(*map(int, row.split(","))) for row in rows)
