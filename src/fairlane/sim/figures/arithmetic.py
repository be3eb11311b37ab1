"""The arithmetic of the figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

Maybe = float | None  # None: there is nothing to tell


def percentile(ordered: Sequence[float], percent: float) -> Maybe:
    """The percentile of sorted values, linear between neighbours; None of none."""
    if not ordered:
        return None
    at = (len(ordered) - 1) * percent / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def fair_parts(whole: float, wanted: dict[str, float]) -> dict[str, float]:
    """The max–min fair division of a whole among those who want something, none getting more than it wants."""
    parts: dict[str, float] = {}
    left = whole
    for rest, (name, want) in zip(range(len(wanted), 0, -1), sorted(wanted.items(), key=lambda item: (item[1], item[0])), strict=True):
        parts[name] = min(want, left / rest)
        left -= parts[name]
    return parts


def jain(values: Sequence[float]) -> Maybe:
    """Jain's index, `(Σx)² / (n·Σx²)`: 1 where all are alike, 1/n where one has all."""
    squares = math.fsum(x * x for x in values)
    return math.fsum(values) ** 2 / (len(values) * squares) if squares else None


def shares(amounts: Sequence[float]) -> list[Maybe]:
    """Each amount's part of their sum."""
    whole = math.fsum(amounts)
    return [amount / whole if whole else None for amount in amounts]
