# ruff: noqa: FURB136 - min() costs more than all the rest
"""What a tenant may do across all pools: its buckets, how many of its requests run, how many wait.

A bucket's level grows by `per_s` up to `burst`, so saved-up bursts pass. A charge is a prediction that the real amount
corrects: the level has no floor, and an overrun is always paid back before the next request passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.core.request import Request, Shed
from fairlane.core.values import BucketRate, Tenant
from fairlane.errors import Reason

if TYPE_CHECKING:
    from fairlane.core.flows import Flow


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

    def give(self, amount: float, now: float) -> None:
        """Returns a charge that was not used, never above the capacity; a negative amount is charged, whether or not it is there."""
        level = self.level(now) + amount
        self._level = level if level < self.rate.burst else self.rate.burst

    def reconfigure(self, rate: BucketRate, now: float) -> None:
        """Takes a new rate; what was used stays used."""
        used = self.rate.burst - self.level(now)
        self.rate = rate
        self._level = rate.burst - used


class TenantState:
    """One tenant's limits and counters. `flows` are those of its flows that have something waiting."""

    __slots__ = ("flows", "queued", "requests", "running", "spec", "tokens")

    def __init__(self, spec: Tenant, now: float) -> None:
        self.spec = spec
        self.running = 0  # until the client's last byte
        self.queued = 0
        self.flows: dict[Flow, None] = {}  # an ordered set
        self.requests = TokenBucket(spec.requests, now) if spec.requests else None
        self.tokens = TokenBucket(spec.tokens, now) if spec.tokens else None

    @property
    def full(self) -> bool:
        """Whether as many of its requests run as may."""
        most = self.spec.max_running
        return most is not None and self.running >= most

    def refusal(self, request: Request, now: float) -> Shed | None:
        """Why its own limits refuse the request, with the time until the bucket that is behind most would let it pass."""
        requests, tokens = self.requests, self.tokens
        if (requests is None or requests.level(now) >= 1) and (tokens is None or tokens.level(now) >= request.limit_tokens):
            return None
        worst_s, worst = 0.0, None
        limits = (requests, 1, Reason.RATE_LIMIT_REQUESTS), (tokens, request.limit_tokens, Reason.RATE_LIMIT_TOKENS)
        for bucket, amount, reason in limits:
            if bucket is None:
                continue
            rate = bucket.rate
            if amount > rate.burst:
                return Shed(request, Reason.REQUEST_OVER_LIMIT)
            short_s = (amount - bucket.level(now)) / rate.per_s
            if short_s > worst_s:  # the random part stays inside the time in which the bucket fills
                worst_s, worst = short_s, Shed(request, reason, short_s, max(0.0, min(short_s / 2, rate.burst / rate.per_s - short_s)))
        return worst

    def charge(self, request: Request, now: float) -> None:
        """Debits both buckets with the prediction."""
        if self.requests is not None:
            self.requests.give(-1, now)
        if self.tokens is not None:
            self.tokens.give(-request.limit_tokens, now)

    def settle(self, request: Request, tokens: int, now: float) -> None:
        """Corrects the debit to the tokens really used; with none used, the request is returned too."""
        if tokens == 0 and self.requests is not None:
            self.requests.give(1, now)
        if self.tokens is not None:
            self.tokens.give(request.limit_tokens - tokens, now)

    def enter(self) -> None:
        """One of its requests began to run; at its limit its flows stop competing."""
        self.running += 1
        if self.full:
            for flow in self.flows:
                flow.queue.turns.leave(flow)

    def leave(self) -> bool:
        """One of its requests is over; below its limit its flows compete again. Returns whether any does so anew."""
        was_full = self.full
        self.running -= 1
        return was_full and self.release()

    def release(self) -> bool:
        """Lets its waiting flows compete if it is below its limit. Returns whether any does so anew."""
        parked = [] if self.full else [flow for flow in self.flows if not flow.stamp]
        for flow in sorted(parked, key=lambda f: next(iter(f.waiting))):
            flow.queue.turns.enter(flow)
        return bool(parked)

    def reconfigure(self, spec: Tenant, now: float) -> None:
        """Takes new limits and weight; nothing that waits or runs is touched."""
        self.requests = _renewed(self.requests, spec.requests, now)
        self.tokens = _renewed(self.tokens, spec.tokens, now)
        self.spec = spec
        for flow in self.flows:
            flow.queue.reweigh(flow)
            if self.full:
                flow.queue.turns.leave(flow)
        self.release()


def _renewed(bucket: TokenBucket | None, rate: BucketRate | None, now: float) -> TokenBucket | None:
    if rate is None or bucket is None:
        return TokenBucket(rate, now) if rate is not None else None
    bucket.reconfigure(rate, now)
    return bucket
