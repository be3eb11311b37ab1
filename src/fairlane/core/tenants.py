"""What a tenant may do across all pools: its buckets, how many of its requests run, how many wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairlane.core.buckets import TokenBucket
from fairlane.core.values import BucketRate, Request, Tenant
from fairlane.errors import Reason

if TYPE_CHECKING:
    from fairlane.core.flows import Flow


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is left of a rate limit: what the `x-ratelimit-*` headers report."""

    limit: int
    remaining: int
    reset_s: float


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
        return self.spec.max_running is not None and self.running >= self.spec.max_running

    def refusal(self, request: Request, now: float) -> tuple[Reason, TokenBucket | None, float] | None:
        """Why its own limits refuse the request, with the bucket and the seconds until that bucket would let it pass."""
        worst: tuple[Reason, TokenBucket | None, float] | None = None
        for bucket, amount, reason in (
            (self.requests, 1, Reason.RATE_LIMIT_REQUESTS),
            (self.tokens, request.limit_tokens, Reason.RATE_LIMIT_TOKENS),
        ):
            if bucket is None:
                continue
            if amount > bucket.rate.burst:
                return Reason.REQUEST_OVER_LIMIT, None, 0.0
            short = bucket.shortfall_s(amount, now)
            if short > 0.0 and (worst is None or short > worst[2]):
                worst = reason, bucket, short
        return worst

    def charge(self, request: Request, now: float) -> None:
        """Debits both buckets with the prediction."""
        if self.requests:
            self.requests.take(1, now)
        if self.tokens:
            self.tokens.take(request.limit_tokens, now)

    def settle(self, request: Request, tokens: int, now: float) -> None:
        """Corrects the debit to the tokens really used; with none used, the request is returned too."""
        if self.requests and tokens == 0:
            self.requests.give(1, now)
        if self.tokens:
            unused = request.limit_tokens - tokens
            if unused >= 0:
                self.tokens.give(unused, now)
            else:
                self.tokens.take(-unused, now)

    def allowances(self, now: float) -> tuple[Allowance | None, Allowance | None]:
        """What is left of its requests and of its tokens; None where there is no limit."""
        return _allowance(self.requests, now), _allowance(self.tokens, now)

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
            flow.queue.reweigh(flow, spec.weight)
            if self.full:
                flow.queue.turns.leave(flow)
        self.release()


def _renewed(bucket: TokenBucket | None, rate: BucketRate | None, now: float) -> TokenBucket | None:
    if rate is None:
        return None
    if bucket is None:
        return TokenBucket(rate, now)
    bucket.reconfigure(rate, now)
    return bucket


def _allowance(bucket: TokenBucket | None, now: float) -> Allowance | None:
    if bucket is None:
        return None
    return Allowance(int(bucket.rate.burst), max(0, int(bucket.level(now))), bucket.full_in_s(now))
