"""A histogram of answer lengths that forgets, and mixtures of several.

Buckets are quarter octaves up to 65,536 tokens, upper edges included, so "at most 256" is exact. Old answers fade because
new ones weigh more: learning touches one bucket. Predictions read running sums, renewed once enough is missing from them.
"""

from bisect import bisect_left
from itertools import accumulate

BUCKETS = 64
HALF_LIFE = 500  # answers after which one counts half
HALF_LIFE_S = 6 * 3600.0
LAPSE_S = 60.0  # time that makes answers fade at all: less of it is a five-hundredth at most
STALE_PART = 1 / 16  # of what a histogram knows may be missing from its running sums
EDGES = tuple(2 ** (i / 4) for i in range(1, BUCKETS + 1))
LOWER = (0.0, *EDGES[:-1])
GROUP = 8  # buckets that count as one where histograms are compared: two octaves, since single ones are noise
GROUPS = BUCKETS // GROUP

_GROWTH = 2 ** (1 / HALF_LIFE)
_WEIGHT_MAX = 1e200
_LAPSES_MAX = 100.0  # half-lives in one step: beyond, nothing old is left

Weighted = tuple[float, list[float], list[float]]  # the factor of a part of a mixture, its running sums of answers and of tokens


def bucket(tokens: float) -> int:
    """The bucket of a length; what is longer than the longest edge counts as that long."""
    index = bisect_left(EDGES, tokens)
    return index if index < BUCKETS else BUCKETS - 1


class Lengths:
    """How long the answers of one kind were, the recent ones above all."""

    __slots__ = ("_cum", "_part", "_summed", "at", "counts", "groups", "learned", "mass", "sums", "weight")

    def __init__(self) -> None:
        self.counts = [0.0] * BUCKETS
        self.sums = [0.0] * BUCKETS  # tokens, weighted as the counts: this makes means exact
        self.groups = [0.0] * GROUPS  # the counts of each group of buckets
        self.weight = 1.0  # of the latest answer
        self.mass = 0.0  # sum of the counts
        self.at = 0.0  # until when time has made answers fade
        self.learned = 0  # answers ever
        self._cum: list[float] = []  # running sums of the counts
        self._part: list[float] = []  # and of the tokens
        self._summed = 0  # answers in the running sums

    @property
    def evidence(self) -> float:
        """How many answers of today's weight it is worth."""
        return self.mass / self.weight

    def learn(self, index: int, tokens: float, now: float) -> None:
        """Count an answer, `index` being its bucket."""
        weight = self.weight * _GROWTH
        if now > self.at + LAPSE_S:
            weight *= 2.0 ** min(_LAPSES_MAX, (now - self.at) / HALF_LIFE_S)
            self.at = now
        if weight > _WEIGHT_MAX:
            self.scale(1 / weight)
            weight = 1.0
        self.weight = weight
        self.counts[index] += weight
        self.sums[index] += weight * tokens
        self.groups[index // GROUP] += weight
        self.mass += weight
        self.learned += 1

    def put(self, index: int, count: float, tokens: float) -> None:
        """Add answers of today's weight to a bucket, as they were counted elsewhere."""
        self.counts[index] += count
        self.sums[index] += tokens
        self.groups[index // GROUP] += count
        self.mass += count

    def scale(self, factor: float) -> None:
        """Multiply all that is counted; the weight of the latest answer is the caller's."""
        self.counts = [count * factor for count in self.counts]
        self.sums = [tokens * factor for tokens in self.sums]
        self.groups = [count * factor for count in self.groups]
        self.mass *= factor
        self._cum = []

    def weighted(self, weight: float) -> Weighted:
        """This histogram as a part of a mixture."""
        if not self._cum or (self.learned - self._summed) * self.weight > self.mass * STALE_PART:
            self._sum()
        return weight / self._cum[BUCKETS], self._cum, self._part

    def _sum(self) -> None:
        """Renew the running sums. Most histograms are narrow, so only the groups from the first to the last are summed up."""
        groups = self.groups
        first, last = 0, GROUPS
        while not groups[first]:
            first += 1
        while not groups[last - 1]:
            last -= 1
        self._cum = _running(self.counts, first * GROUP, last * GROUP)
        self._part = _running(self.sums, first * GROUP, last * GROUP)
        self._summed = self.learned


def _running(amounts: list[float], low: int, high: int) -> list[float]:
    """Running sums of amounts that are all zero below and above two places."""
    sums = [0.0] * low
    sums += accumulate(amounts[low:high], initial=0.0)
    sums += sums[-1:] * (BUCKETS - high)
    return sums


class Mixture:
    """A sum of histograms whose weights add up to one. Within a bucket answers count as spread evenly."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Weighted]) -> None:
        self.parts = parts

    def mean(self) -> float:
        """The mean length."""
        mean = 0.0
        for factor, _, part in self.parts:
            mean += factor * part[BUCKETS]
        return mean

    def up_to(self, tokens: float) -> tuple[float, float]:
        """The share of answers of at most so many tokens, and what they add to the mean."""
        i = bisect_left(EDGES, tokens)
        if i >= BUCKETS:
            return 1.0, self.mean()
        inside = (tokens - LOWER[i]) / (EDGES[i] - LOWER[i])
        outside = 1.0 - inside
        share = amount = 0.0
        for factor, cum, part in self.parts:
            share += factor * (outside * cum[i] + inside * cum[i + 1])
            amount += factor * (outside * part[i] + inside * part[i + 1])
        return share, amount

    def bound(self, share: float) -> tuple[float, float]:
        """The length that so large a share of answers does not exceed, and what these add to the mean.

        Neither is ever smaller for a larger share.
        """
        parts = self.parts
        low = self._near(share)
        while True:
            before = after = amount = added = 0.0
            for factor, cum, part in parts:
                before += factor * cum[low]
                after += factor * cum[low + 1]
                amount += factor * part[low]
                added += factor * part[low + 1]
            if before >= share and low:
                low -= 1
            elif after < share and low < BUCKETS - 1:
                low += 1
            else:
                break
        inside = min(1.0, (share - before) / (after - before)) if after > before else 1.0
        return LOWER[low] + inside * (EDGES[low] - LOWER[low]), amount + inside * (added - amount)

    def _near(self, share: float) -> int:
        """The bucket of a share in the heaviest histogram, which is mostly a step or two from that in all of them."""
        most, heaviest = 0.0, self.parts[0][1]
        for factor, cum, _ in self.parts:
            weight = factor * cum[BUCKETS]
            if weight > most:
                most, heaviest = weight, cum
        return min(BUCKETS, max(1, bisect_left(heaviest, share * heaviest[BUCKETS]))) - 1

    def quantile(self, share: float) -> float:
        """The length that so large a share of answers does not exceed."""
        return self.bound(share)[0]
