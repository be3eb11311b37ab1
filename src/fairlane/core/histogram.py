"""A histogram of answer lengths that forgets, and mixtures of several.

Buckets are spaced by quarter octaves up to 65,536 tokens, upper edges included, so "at most 256" is exact. Old answers
fade by growing the weight of new ones: learning touches one bucket. What predictions read are running sums, which are
renewed only when enough was learned to matter.
"""

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

BUCKETS = 64
HALF_LIFE = 500  # answers after which one counts half
HALF_LIFE_S = 6 * 3600.0
STALE_PART = 1 / 32  # of what a histogram knows may be missing from its running sums
EDGES = tuple(2 ** (i / 4) for i in range(1, BUCKETS + 1))
LOWER = (0.0, *EDGES[:-1])
GROUP = 8  # buckets that count as one where histograms are compared: two octaves, since single ones are noise

_GROWTH = 2 ** (1 / HALF_LIFE)
_WEIGHT_MAX = 1e200
_LAPSE_MAX = 100.0  # half-lives in one step: beyond, nothing old is left


def bucket(tokens: float) -> int:
    """The bucket of a length; what is longer than the longest edge counts as that long."""
    return min(BUCKETS - 1, bisect_left(EDGES, tokens))


class Lengths:
    """How long the answers of one kind were, recent ones first."""

    __slots__ = ("_fresh", "at", "counts", "cum", "gates", "mass", "part", "sums", "weight")

    def __init__(self) -> None:
        self.counts = array("d", bytes(8 * BUCKETS))
        self.sums = array("d", bytes(8 * BUCKETS))  # tokens, weighted as the counts, which makes means exact
        self.weight = 1.0  # of the latest answer
        self.mass = 0.0  # sum of the counts
        self.at = 0.0
        self.gates: list[float] | None = None  # of the levels below, in log odds; kept where they are learned
        self.cum: list[float] = []
        self.part: list[float] = []
        self._fresh = 0

    @property
    def evidence(self) -> float:
        """How many answers of today's weight it is worth."""
        return self.mass / self.weight

    def learn(self, index: int, tokens: float, now: float) -> None:
        """Count an answer of bucket `index`."""
        self.weight *= _GROWTH
        if now > self.at:
            if self.mass:
                self.weight *= 2.0 ** min(_LAPSE_MAX, (now - self.at) / HALF_LIFE_S)
            self.at = now
        if self.weight > _WEIGHT_MAX:
            self._shrink()
        self.counts[index] += self.weight
        self.sums[index] += self.weight * tokens
        self.mass += self.weight
        self._fresh += 1

    def near(self, index: int) -> float:
        """The share of answers in the group of buckets that holds this one."""
        start = index - index % GROUP
        return sum(self.counts[start : start + GROUP]) / self.mass

    def renew(self) -> None:
        """Bring the running sums up to date, if they lack too much."""
        if not self.cum or self._fresh * self.weight > self.mass * STALE_PART:
            part = 1 / self.mass
            self.cum = [part * count for count in accumulate(self.counts, initial=0.0)]
            self.part = [part * tokens for tokens in accumulate(self.sums, initial=0.0)]
            self._fresh = 0

    def _shrink(self) -> None:
        by = 1 / self.weight
        self.counts = array("d", [by * count for count in self.counts])
        self.sums = array("d", [by * tokens for tokens in self.sums])
        self.mass *= by
        self.weight = 1.0


class Mixture:
    """A weighted sum of histograms whose weights add up to one. Within a bucket answers count as spread evenly."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[tuple[float, list[float], list[float]]]) -> None:
        self._parts = parts

    def mean(self) -> float:
        """The mean length."""
        return math.fsum(weight * part[BUCKETS] for weight, _, part in self._parts)

    def up_to(self, tokens: float) -> tuple[float, float]:
        """The share of answers of at most so many tokens, and what they add to the mean."""
        i = bisect_left(EDGES, tokens)
        if i >= BUCKETS:
            return 1.0, self.mean()
        inside = max(0.0, (tokens - LOWER[i]) / (EDGES[i] - LOWER[i]))
        share = amount = 0.0
        for weight, cum, part in self._parts:
            share += weight * (cum[i] + inside * (cum[i + 1] - cum[i]))
            amount += weight * (part[i] + inside * (part[i + 1] - part[i]))
        return share, amount

    def quantile(self, share: float) -> float:
        """The length that so large a share of answers does not exceed; never smaller for a larger share."""
        parts = self._parts
        low, high = 0, BUCKETS - 1
        while low < high:
            middle = (low + high) // 2
            reached = 0.0
            for weight, cum, _ in parts:
                reached += weight * cum[middle + 1]
            if reached < share:
                low = middle + 1
            else:
                high = middle
        before = after = 0.0
        for weight, cum, _ in parts:
            before += weight * cum[low]
            after += weight * cum[low + 1]
        inside = (share - before) / (after - before) if after > before else 1.0
        return LOWER[low] + max(0.0, min(1.0, inside)) * (EDGES[low] - LOWER[low])
