# ruff: noqa: FURB136 - min() costs more than all the rest
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
            rate = self.rate
            level = self._level + (now - self._at) * rate.per_s
            self._level = level if level < rate.burst else rate.burst
            self._at = now
        return self._level

    def take(self, amount: float, now: float) -> None:
        """Charges `amount`, whether or not it is there."""
        self._level = self.level(now) - amount

    def give(self, amount: float, now: float) -> None:
        """Returns a charge that was not used, never above the capacity; a negative amount is charged."""
        level = self.level(now) + amount
        self._level = level if level < self.rate.burst else self.rate.burst

    def reconfigure(self, rate: BucketRate, now: float) -> None:
        """Takes a new rate; what was used stays used."""
        used = self.rate.burst - self.level(now)
        self.rate = rate
        self._level = rate.burst - used
