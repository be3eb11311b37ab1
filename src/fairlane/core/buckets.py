"""Token buckets: a limit on a rate that lets saved-up bursts through.

The level grows by `per_s` up to `burst`. A charge is a prediction; the real amount corrects it, so the level may fall
below zero and has no floor: an overrun is always paid back before the next request passes.
"""

from fairlane.core.values import BucketRate


class TokenBucket:
    """One bucket, full at first. Every method takes the time, which may stand still but never runs backwards."""

    __slots__ = ("_at", "_level", "rate")

    def __init__(self, rate: BucketRate, now: float) -> None:
        self.rate = rate
        self._level = rate.burst
        self._at = now

    def level(self, now: float) -> float:
        """Units there now; below zero while an overrun is being paid back."""
        if now > self._at:
            self._level = min(self.rate.burst, self._level + (now - self._at) * self.rate.per_s)
            self._at = now
        return self._level

    def shortfall_s(self, amount: float, now: float) -> float:
        """Seconds until `amount` is there; 0.0 if it is there now. Only for amounts within the capacity."""
        return max(0.0, (amount - self.level(now)) / self.rate.per_s)

    def take(self, amount: float, now: float) -> None:
        """Charges `amount`, whether or not it is there."""
        self._level = self.level(now) - amount

    def give(self, amount: float, now: float) -> None:
        """Returns a charge that was not used; never above the capacity."""
        self._level = min(self.rate.burst, self.level(now) + amount)

    def full_in_s(self, now: float) -> float:
        """Seconds until the bucket is full again: what `x-ratelimit-reset-*` reports."""
        return max(0.0, (self.rate.burst - self.level(now)) / self.rate.per_s)

    def reconfigure(self, rate: BucketRate, now: float) -> None:
        """Takes a new rate; what was used stays used."""
        used = self.rate.burst - self.level(now)
        self.rate = rate
        self._level = rate.burst - used
