"""A histogram of seconds that costs one bisection and two additions an observation.

The bounds go 1, 2, 5 in every decade from a millisecond to a thousand seconds: an estimated quantile is off by a factor of
2.5 at most, from a cached answer to a batch request that waited a quarter of an hour. One event loop writes, so nothing locks.
"""

from bisect import bisect_left
from itertools import accumulate

BOUNDS_S: tuple[float, ...] = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0),
)


class Histogram:
    """Counts observations by bucket, and keeps their sum and the largest of them."""

    __slots__ = ("counts", "max_s", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)  # the last is above every bound
        self.sum_s = 0.0
        self.max_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one observation. A value equal to a bound belongs below it, as Prometheus has it."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds
        if seconds > self.max_s:  # noqa: PLR1730 - calling max() costs as much as the bisection
            self.max_s = seconds

    def cumulative(self) -> list[int]:
        """How many observations are at most each bound; the last number is all of them."""
        return list(accumulate(self.counts))
