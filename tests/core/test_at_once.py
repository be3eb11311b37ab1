"""A request that starts at once is booked as if it had waited for the next dispatch: two schedulers, one of which makes it wait."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairlane.core import bounds
from fairlane.core.pool import PoolScheduler
from fairlane.core.request import Decision, Request, Start
from fairlane.core.scheduler import Scheduler
from fairlane.core.tenants import TenantState
from fairlane.core.values import BucketRate, Engine, Outcome, PriorityClass, Tenant, Usage
from fairlane.errors import Reason
from fairlane.plugins import POLICIES
from tests.core.world import make, placement, request

CLASSES = (
    PriorityClass("high", 0, 3000, max_queued=1, max_wait_s=5.0, ttft_slo_s=2.0),
    PriorityClass("middle", 1, 1000, max_queued_cost=4000, max_wait_s=20.0, max_running=2, promote_after_s=1.0),
    PriorityClass("low", 2, 1000, max_queued=6, max_wait_s=1000.0, short_first_s=60.0),
)
TENANTS = (
    Tenant("plain"),
    Tenant("heavy", weight=3.0),
    Tenant("narrow", weight=0.5, max_running=1, max_queued=3),
    Tenant("metered", requests=BucketRate(0.5, 5), tokens=BucketRate(500, 5000)),
)
ENGINES = (Engine("a", 3, context=180), Engine("b", 3, kv_tokens=1500, prefill_tokens=600, context=180), Engine("c", 2, context=90))

picks = st.integers(min_value=0, max_value=10**6)


class Waits(PoolScheduler):
    """A pool in which nothing starts before the next dispatch, whatever it was that could."""

    def start_at_once(self, request: Request, tenant: TenantState, now: float, out: list[Decision]) -> bool:  # noqa: ARG002
        queue = self.queues[request.rank]
        if queue.full or tenant.full or any(q.backlogged for q in self.queues):
            return False
        if bounds.unserved(request, self.places) or self.places.choose(request) is None:
            return False
        self.add(request, tenant)
        return True


def told(decision: Decision) -> tuple[Any, ...]:
    """A decision without the objects that differ between the two."""
    return type(decision), decision.request.id, *decision[1:]


def books(scheduler: Scheduler) -> list[Any]:
    """Everything that a later decision may depend on."""
    pool = scheduler.pools["main"]
    found: list[Any] = [scheduler.queued, scheduler.wake_at(), vars(placement(scheduler).ttft), pool.rate.per_s(1e6), pool.rate.busy_s(1e6)]
    for q in pool.queues:
        found += [q.queued, q.cost, q.running, q.served_cost, q.cost_max, q.waiting_weight, q.entered, q.turns.clock.v]
        found += [(name, f.tag, f.edge, f.cost, f.running, bool(f.stamp), [*f.waiting]) for name, f in sorted(q.flows.items())]
        found += [q.rate.per_s(1e6), q.rate.busy_s(1e6)]
    order: Any = pool.order
    found += [(name, getattr(order, name)) for name in ("total", "_tag", "_edge", "_lifted", "_moment", "_clock") if hasattr(order, name)]
    for e in pool.places.engines.values():
        limit: Any = e.limit
        found += [limit.running, limit.tokens, limit.final, limit.prefilling, e.prefills_since]
    for t in scheduler.tenants.values():
        found += [t.running, t.queued, t.requests and t.requests._level, t.tokens and t.tokens._level]
    return found


class AtOnceMachine(RuleBasedStateMachine):
    """Feeds the same events to both and carries out the decisions of both."""

    both: tuple[Scheduler, Scheduler]

    @initialize(policy=st.sampled_from(sorted(POLICIES)))
    def begin(self, policy: str) -> None:
        self.now = 0.0
        self.both = make(ENGINES, CLASSES, policy=policy), make(ENGINES, CLASSES, policy=policy)
        self.both[1].pools["main"].__class__ = Waits
        for scheduler in self.both:
            for tokens in range(100, 1100, 100):  # on the border of what the urgent class is promised
                placement(scheduler).ttft.observe(tokens, tokens / 250)
        self.waiting: dict[int, tuple[Request, ...]] = {}
        self.running: dict[int, tuple[Request, ...]] = {}
        self.produced: dict[int, int] = {}

    def pump(self) -> None:
        decisions, others = (scheduler.poll(self.now) for scheduler in self.both)
        assert [told(d) for d in decisions] == [told(d) for d in others]
        for d in decisions:
            pair = self.waiting.pop(d.request.id)
            if isinstance(d, Start):
                self.running[d.request.id] = pair
                for name in ("flow_charge", "prefill_ahead", "prefills_since", "busy_at_start", "class_busy_at_start", "started_at"):
                    assert getattr(pair[0], name) == getattr(pair[1], name)

    def pick(self, index: int, among: dict[int, tuple[Request, ...]]) -> int:
        return sorted(among)[index % len(among)]

    @rule(
        tenant=st.sampled_from(TENANTS),
        rank=st.integers(0, 2),
        prompt=st.sampled_from([1, 60, 200, 500, 600, 700, 800]),
        output=st.integers(0, 300),
        streams=st.booleans(),
    )
    def arrive(self, tenant: Tenant, rank: int, prompt: int, output: int, streams: bool) -> None:
        first = request(tenant, rank, self.now, prompt=prompt, output=output)
        first.streams = streams
        second = request(tenant, rank, self.now, prompt=prompt, output=output)
        second.id, second.streams = first.id, streams
        self.waiting[first.id] = first, second
        for scheduler, r in zip(self.both, self.waiting[first.id], strict=True):
            scheduler.submit(r, self.now)
        self.pump()

    @precondition(lambda self: self.running)
    @rule(index=picks, output=st.integers(0, 400), outcome=st.sampled_from(Outcome))
    def finish(self, index: int, output: int, outcome: Outcome) -> None:
        pair = self.running.pop(self.pick(index, self.running))
        usage = None if outcome is Outcome.FAILED else Usage(pair[0].prompt_tokens, output)
        for scheduler, r in zip(self.both, pair, strict=True):
            scheduler.settle(r, usage, outcome, self.now)
            scheduler.depart(r)
        self.pump()

    @precondition(lambda self: self.running)
    @rule(index=picks, more=st.integers(1, 300))
    def produce(self, index: int, more: int) -> None:
        number = self.pick(index, self.running)
        self.produced[number] = self.produced.get(number, 0) + more
        for scheduler, r in zip(self.both, self.running[number], strict=True):
            scheduler.progress(r, self.produced[number], self.now)
        self.pump()

    @precondition(lambda self: self.running)
    @rule(index=picks)
    def bounce(self, index: int) -> None:
        """The engine could not be reached: the request waits again, and may start in the same moment."""
        number = self.pick(index, self.running)
        self.waiting[number] = self.running.pop(number)
        for scheduler, r in zip(self.both, self.waiting[number], strict=True):
            scheduler.requeue(r)
        self.pump()

    @precondition(lambda self: self.waiting)
    @rule(index=picks)
    def client_leaves(self, index: int) -> None:
        pair = self.waiting.pop(self.pick(index, self.waiting))
        for scheduler, r in zip(self.both, pair, strict=True):
            scheduler.cancel(r, self.now)
        self.pump()

    @rule(name=st.sampled_from([e.name for e in ENGINES]), up=st.booleans(), slots=st.integers(0, 4))
    def engine_changes(self, name: str, up: bool, slots: int) -> None:
        for scheduler in self.both:
            scheduler.engine_report("main", name, up=up, spec=Engine(name, slots, 1500 if slots % 2 else None, None, 180))
        self.pump()

    @rule(seconds=st.sampled_from([0.001, 0.5, 3.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.pump()

    @rule(reason=st.just(Reason.DRAINING))
    def drain(self, reason: Reason) -> None:
        for scheduler in self.both:
            scheduler.evict_all(reason, self.now)
        self.pump()

    @invariant()
    def the_books_agree(self) -> None:
        if hasattr(self, "both"):
            assert books(self.both[0]) == books(self.both[1])


@pytest.mark.source
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_tie_between_classes_does_not_rest_on_how_others_started(policy: str) -> None:
    """Of two heads of one tenant that may run one request, the same one goes first, whichever way those before it started."""
    narrow, plain = (next(t for t in TENANTS if t.name == name) for name in ("narrow", "plain"))
    world = AtOnceMachine()
    world.begin(policy)
    for tenant, rank in ((narrow, 0), (plain, 0), (narrow, 1)):
        world.arrive(tenant, rank, 1, 0, streams=False)
    world.bounce(0)
    world.the_books_agree()


TestAtOnce = pytest.mark.source(AtOnceMachine.TestCase)
TestAtOnce.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
