"""A histogram of answer lengths that forgets, and mixtures of several.

Buckets are quarter octaves up to 65,536 tokens, upper edges included, so "at most 256" is exact. Old answers fade because
new ones weigh more: learning touches one bucket. Predictions read running sums, renewed once enough is missing from them.
"""

from array import array
from bisect import bisect_left
from itertools import accumulate
from typing import NamedTuple

BUCKETS = 64
HALF_LIFE = 500  # answers after which one counts half
HALF_LIFE_S = 6 * 3600.0
STALE_PART = 1 / 16  # of what a histogram knows may be missing from its running sums
EDGES = tuple(2 ** (i / 4) for i in range(1, BUCKETS + 1))
LOWER = (0.0, *EDGES[:-1])
GROUPS = 8
GROUP = BUCKETS // GROUPS  # buckets that count as one where histograms are compared: two octaves, since single ones are noise

_GROWTH = 2 ** (1 / HALF_LIFE)
_WEIGHT_MAX = 1e200
_LAPSE_MAX = 100.0  # half-lives in one step: beyond, nothing old is left


def bucket(tokens: float) -> int:
    """The bucket of a length; what is longer than the longest edge counts as that long."""
    return min(BUCKETS - 1, bisect_left(EDGES, tokens))


class Lengths:
    """How long the answers of one kind were, the recent ones above all."""

    __slots__ = ("_summed", "at", "counts", "cum", "gates", "learned", "mass", "part", "sums", "weight")

    def __init__(self) -> None:
        self.counts = array("d", bytes(8 * BUCKETS))
        self.sums = array("d", bytes(8 * BUCKETS))  # tokens, weighted as the counts: this makes means exact
        self.weight = 1.0  # of the latest answer
        self.mass = 0.0  # sum of the counts
        self.at = 0.0
        self.learned = 0  # answers ever
        self.gates: list[float] = []  # of the levels below, in log odds, where those are learned
        self.cum: list[float] = []  # running sums of the counts
        self.part: list[float] = []  # and of the tokens
        self._summed = 0  # answers in the running sums

    @property
    def evidence(self) -> float:
        """How many answers of today's weight it is worth."""
        return self.mass / self.weight

    def learn(self, index: int, tokens: float, now: float) -> None:
        """Count an answer, `index` being its bucket."""
        weight = self.weight * _GROWTH
        if now > self.at:
            if self.mass:
                weight *= 2.0 ** min(_LAPSE_MAX, (now - self.at) / HALF_LIFE_S)
            self.at = now
        if weight > _WEIGHT_MAX:
            self.counts = array("d", [count / weight for count in self.counts])
            self.sums = array("d", [tokens / weight for tokens in self.sums])
            self.mass, weight, self.cum = self.mass / weight, 1.0, []
        self.weight = weight
        self.counts[index] += weight
        self.sums[index] += weight * tokens
        self.mass += weight
        self.learned += 1

    def near(self, index: int) -> float:
        """The share of answers in the group of buckets that holds this one."""
        start = index - index % GROUP
        return sum(self.counts[start : start + GROUP]) / self.mass

    def weighted(self, weight: float) -> "Weighted":
        """This histogram as a part of a mixture."""
        if not self.cum or (self.learned - self._summed) * self.weight > self.mass * STALE_PART:
            self.cum = list(accumulate(self.counts, initial=0.0))
            self.part = list(accumulate(self.sums, initial=0.0))
            self._summed = self.learned
        return Weighted(weight / self.cum[BUCKETS], self.cum, self.part)


class Weighted(NamedTuple):
    """Running sums, and the factor that they count in a mixture."""

    factor: float
    cum: list[float]
    part: list[float]


class Mixture:
    """A sum of histograms whose weights add up to one. Within a bucket answers count as spread evenly."""

    __slots__ = ("_parts",)

    def __init__(self, parts: list[Weighted]) -> None:
        self._parts = parts

    def mean(self) -> float:
        """The mean length."""
        mean = 0.0
        for factor, _, part in self._parts:
            mean += factor * part[BUCKETS]
        return mean

    def up_to(self, tokens: float) -> tuple[float, float]:
        """The share of answers of at most so many tokens, and what they add to the mean."""
        i = bisect_left(EDGES, tokens)
        if i >= BUCKETS:
            return 1.0, self.mean()
        inside = (tokens - LOWER[i]) / (EDGES[i] - LOWER[i])
        share = amount = 0.0
        for factor, cum, part in self._parts:
            share += factor * (cum[i] + inside * (cum[i + 1] - cum[i]))
            amount += factor * (part[i] + inside * (part[i + 1] - part[i]))
        return share, amount

    def quantile(self, share: float) -> float:
        """The length that so large a share of answers does not exceed; never smaller for a larger share."""
        parts = self._parts
        low, high = 0, BUCKETS - 1
        while low < high:
            middle = (low + high + 1) >> 1
            before = 0.0
            for factor, cum, _ in parts:
                before += factor * cum[middle]
            if before < share:
                low = middle
            else:
                high = middle - 1
        before = after = 0.0
        for factor, cum, _ in parts:
            before += factor * cum[low]
            after += factor * cum[low + 1]
        inside = (share - before) / (after - before) if after > before else 1.0
        return LOWER[low] + min(1.0, inside) * (EDGES[low] - LOWER[low])
