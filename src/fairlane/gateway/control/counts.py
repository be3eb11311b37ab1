"""What the gateway itself counts of an engine's answers, for the controller of its limit.

Counting costs a few additions for each request and for each report of progress; what is made of them is worked out once a second.
Only the latest measurements count, of a time and a number that are bounded.
"""

from collections import deque
from collections.abc import Iterable

from fairlane.policies.limits.signals import CALM_RUNNING

KEPT = 256  # measurements of a kind
KEPT_S = 30.0
FEWEST = 5  # measurements that a quantile is taken of
CALM_KEPT = 32  # of them while it was calm: enough for the quantile, and few enough for a cold start to be over soon
TIMED_TOKENS_MIN = 8  # of an answer whose pace is measured: fewer come in one or two pieces

Timed = tuple[float, float]
"""A measurement and when it was made."""


class Counts:
    """One engine's answers. All times are of one monotonic clock."""

    def __init__(self) -> None:
        self.tokens = 0  # of output, ever
        self._refused_at: int | None = None
        self._tpots: deque[Timed] = deque(maxlen=KEPT)
        self._ttfts: deque[Timed] = deque(maxlen=KEPT)
        self._calm: deque[float] = deque(maxlen=CALM_KEPT)
        self._calm_anew = 0  # of them since the engine was back

    def first_token(self, seconds: float, beside: int, now: float) -> None:
        """A stream's first token came after so long; at most `beside` requests ran when it was sent and now, itself included."""
        self._ttfts.append((now, seconds))
        if beside <= CALM_RUNNING:
            self._calm.append(seconds)
            self._calm_anew += 1
            if self._calm_anew == FEWEST and len(self._calm) > FEWEST:
                self._calm = deque([*self._calm][-FEWEST:], maxlen=CALM_KEPT)

    def answered(self, tokens: int, seconds: float, now: float) -> None:
        """A whole stream had so many tokens, the last of them so long after the first."""
        if tokens >= TIMED_TOKENS_MIN:
            self._tpots.append((now, seconds / (tokens - 1)))

    def refused(self, others: int) -> None:
        """The engine refused a request for want of room while it had so many others."""
        self._refused_at = others if self._refused_at is None else min(others, self._refused_at)

    def take_refused(self) -> int | None:
        """The fewest others at a refusal since this was asked last; None: there was none."""
        refused_at, self._refused_at = self._refused_at, None
        return refused_at

    def tpot_s(self, now: float) -> float | None:
        """The 0.95 quantile of the time per output token."""
        return _quantile(_latest(self._tpots, now), 0.95)

    def ttft_s(self, now: float) -> float | None:
        """The 0.9 quantile of the time to the first token."""
        return _quantile(_latest(self._ttfts, now), 0.9)

    def calm_ttft_s(self) -> float | None:
        """The same of an engine that is next to idle."""
        return _quantile(self._calm, 0.9)

    def returned(self) -> None:
        """The engine was away and may be another now: what it was when calm counts until enough is measured anew."""
        self._calm_anew = 0

    def forget(self) -> None:
        """What was measured under a limit that has been cut says nothing of the new one."""
        self._tpots.clear()
        self._ttfts.clear()


def _latest(measured: deque[Timed], now: float) -> list[float]:
    while measured and measured[0][0] < now - KEPT_S:
        measured.popleft()
    return [value for _, value in measured]


def _quantile(values: Iterable[float], part: float) -> float | None:
    rising = sorted(values)
    return rising[min(len(rising) - 1, int(part * len(rising)))] if len(rising) >= FEWEST else None
