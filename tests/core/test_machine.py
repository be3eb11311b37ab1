"""A state machine over the whole scheduler: any order of events keeps every invariant."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairlane.core.pool import PoolScheduler
from fairlane.core.request import Request, Shed, Start
from fairlane.core.scheduler import Scheduler
from fairlane.core.values import BucketRate, Engine, Outcome, PriorityClass, State, Tenant, Usage
from fairlane.errors import RULES, Family, Reason
from fairlane.plugins import POLICIES
from tests.core.world import make, request

CLASSES = (
    PriorityClass("high", 0, 3000, max_queued=6, max_wait_s=5.0),
    PriorityClass("middle", 1, 1000, max_queued=6, max_queued_cost=4000, max_wait_s=20.0, max_running=3),
    PriorityClass("low", 2, 1000, max_queued=20, max_wait_s=1000.0, short_first_s=60.0),
)
TENANTS = (
    Tenant("plain"),
    Tenant("heavy", weight=3.0, max_queued=4),
    Tenant("narrow", weight=0.5, max_running=2),
    Tenant("metered", requests=BucketRate(0.5, 5), tokens=BucketRate(50, 1500)),
)
ENGINES = (Engine("a", 2), Engine("b", 3, kv_tokens=900, prefill_tokens=500), Engine("c", 1, context=600))

picks = st.integers(min_value=0, max_value=10**6)


def count_of(tenant: str, requests: dict[int, Request]) -> int:
    """How many of the requests are the tenant's."""
    return sum(r.tenant.name == tenant for r in requests.values())


class SchedulerMachine(RuleBasedStateMachine):
    """Feeds random events; after each, `poll` is called and the books are compared with a recount."""

    scheduler: Scheduler

    @initialize(max_queued=st.sampled_from([8, 1000]), policy=st.sampled_from(sorted(POLICIES)))
    def begin(self, max_queued: int, policy: str) -> None:
        self.now = 0.0
        self.max_queued = max_queued
        self.scheduler = make(ENGINES, CLASSES, max_queued=max_queued, policy=policy)
        self.specs = {e.name: e for e in ENGINES}
        self.up = {e.name: True for e in ENGINES}
        self.waiting: dict[int, Request] = {}
        self.running: dict[int, Request] = {}
        self.settled: dict[int, Request] = {}  # whose client still reads
        self.ended: set[int] = set()
        self.true_cost = 0
        self.produced: dict[int, int] = {}
        self.bounced: set[int] = set()  # back in their old places, whatever the bounds say

    @property
    def pool(self) -> PoolScheduler:
        return self.scheduler.pools["main"]

    def pump(self) -> None:
        """Carries out decisions, checking that each request gets one answer."""
        for decision in self.scheduler.poll(self.now):
            r = decision.request
            assert r.id not in self.ended
            if isinstance(decision, Start):
                del self.waiting[r.id]
                assert self.up[decision.engine]
                self.running[r.id] = r
            else:
                self.check_shed(decision)
        self.check_order_of_wake()

    def check_shed(self, shed: Shed) -> None:
        """A shed request was waiting, and its answer is of the right kind."""
        del self.waiting[shed.request.id]
        self.ended.add(shed.request.id)
        rule = RULES[shed.reason]
        assert rule.family in (Family.REJECTED, Family.EVICTED, Family.INVALID)
        assert (shed.retry_after_s is not None) == rule.retryable
        if shed.reason is Reason.WAIT_EXPIRED:
            assert self.now >= shed.request.deadline

    def check_order_of_wake(self) -> None:
        """`wake_at` is kept: at any time before it, polling with no new event decides nothing."""
        wake = self.scheduler.wake_at()
        assert wake is None or wake > self.now
        if wake is not None:
            assert self.scheduler.poll(self.now + (wake - self.now) * 0.99) == []
        assert self.scheduler.poll(self.now) == []

    def pick(self, index: int, among: dict[int, Request]) -> Request:
        return among[sorted(among)[index % len(among)]]

    @rule(
        tenant=st.sampled_from(TENANTS),
        rank=st.integers(0, 2),
        prompt=st.integers(1, 800),
        output=st.integers(0, 300),
        cap=st.integers(0, 2000),
        sequences=st.sampled_from([1, 1, 1, 2, 20]),
    )
    def arrive(self, tenant: Tenant, rank: int, prompt: int, output: int, *, cap: int, sequences: int) -> None:
        r = request(tenant, rank, self.now, prompt=prompt, output=output)
        r.sequences = sequences
        r.max_tokens = prompt + output + cap
        self.waiting[r.id] = r
        self.scheduler.submit(r, self.now)
        self.pump()

    @precondition(lambda self: self.running)
    @rule(index=picks, ratio=st.sampled_from([0.0, 0.25, 1.0, 4.0]), outcome=st.sampled_from(Outcome))
    def finish(self, index: int, ratio: float, outcome: Outcome) -> None:
        r = self.pick(index, self.running)
        usage = None if outcome is Outcome.FAILED else Usage(r.prompt_tokens, round(r.output_tokens * ratio))
        for _ in range(2):  # settling twice is settling once
            self.scheduler.settle(r, usage, outcome, self.now)
        self.true_cost += self.scheduler.weights.cost(usage) if usage else 0
        del self.running[r.id]
        self.settled[r.id] = r
        self.pump()

    @precondition(lambda self: self.running)
    @rule(index=picks, more=st.integers(1, 300))
    def produce(self, index: int, more: int) -> None:
        r = self.pick(index, self.running)
        self.produced[r.id] = self.produced.get(r.id, 0) + more
        self.scheduler.progress(r, self.produced[r.id], self.now)
        self.pump()

    @precondition(lambda self: self.settled)
    @rule(index=picks)
    def client_done(self, index: int) -> None:
        r = self.pick(index, self.settled)
        self.scheduler.depart(r)
        self.scheduler.depart(r)
        del self.settled[r.id]
        self.ended.add(r.id)
        self.pump()

    @precondition(lambda self: self.waiting)
    @rule(index=picks)
    def client_leaves(self, index: int) -> None:
        r = self.pick(index, self.waiting)
        self.scheduler.cancel(r, self.now)
        self.scheduler.cancel(r, self.now)
        del self.waiting[r.id]
        self.ended.add(r.id)
        self.pump()

    @precondition(lambda self: self.running)
    @rule(index=picks)
    def bounce(self, index: int) -> None:
        """The engine could not be reached: it goes down, and the request waits again."""
        r = self.pick(index, self.running)
        self.report(r.engine.spec.name, up=False)
        self.scheduler.requeue(r)
        self.produced.pop(r.id, None)
        self.bounced.add(r.id)
        del self.running[r.id]
        self.waiting[r.id] = r
        self.pump()

    @rule(name=st.sampled_from([e.name for e in ENGINES]), up=st.booleans(), slots=st.integers(0, 4))
    def engine_changes(self, name: str, up: bool, slots: int) -> None:
        self.specs[name] = replace(self.specs[name], slots=slots)
        self.report(name, up=up)
        self.pump()

    def report(self, name: str, *, up: bool) -> None:
        self.up[name] = up
        self.scheduler.engine_report("main", name, up=up, spec=self.specs[name])

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.5, 3.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.pump()

    @rule(reason=st.just(Reason.DRAINING))
    def drain(self, reason: Reason) -> None:
        self.scheduler.evict_all(reason, self.now)
        self.pump()
        assert not self.waiting

    @invariant()
    def states_agree(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        assert all(r.state is State.WAITING for r in self.waiting.values())
        assert all(r.state is State.RUNNING for r in self.running.values())

    @invariant()
    def counters_equal_a_recount(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        assert self.scheduler.queued == self.pool.queued == len(self.waiting)
        for queue in self.pool.queues:
            waiting = [r for r in self.waiting.values() if r.rank == queue.spec.rank]
            running = [r for r in self.running.values() if r.rank == queue.spec.rank]
            assert (queue.queued, queue.cost, queue.running) == (len(waiting), sum(r.cost for r in waiting), len(running))
            assert queue.running <= (queue.spec.max_running or len(running))
            assert queue.waiting_weight == sum(f.weight for f in queue.waiting_flows)
            assert queue.turns.flows == sum(1 for f in queue.waiting_flows if not f.tenant.full)
            assert {f for f in queue.flows.values() if f.stamp} == {f for f in queue.waiting_flows if not f.tenant.full}
            assert queue.head() is (queue.turns.first().head() if queue.backlogged else None)
            for flow in queue.waiting_flows:
                assert flow.head() is min(flow.waiting.values(), key=lambda r: (r.key, r.id))
        if self.waiting:
            assert self.pool.deadlines.first().deadline == min(r.deadline for r in self.waiting.values())
        for state in self.scheduler.tenants.values():
            name = state.spec.name
            assert state.running == count_of(name, self.running) + count_of(name, self.settled)
            assert state.queued == count_of(name, self.waiting)
            assert state.running <= (state.spec.max_running or state.running)

    @invariant()
    def limits_hold(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        assert self.scheduler.queued <= self.max_queued + len(self.bounced & set(self.waiting))
        for engine in self.pool.places.engines.values():
            limit: Any = engine.limit
            there = [r for r in self.running.values() if r.engine is engine]
            assert limit.running == sum(r.sequences for r in there)
            assert limit.prefilling == sum(r.prompt_tokens for r in there if r.id not in self.produced)
            assert limit.tokens == sum(r.prompt_tokens + self.produced.get(r.id, 0) for r in there)
            assert limit.final == sum(r.held_tokens + r.coming_tokens for r in there)
            assert set(limit._requests) == set(there)

    @invariant()
    def charges_are_conserved(self) -> None:
        """What was ever charged is the true cost of what ended and the prediction of what runs."""
        if hasattr(self, "scheduler"):
            total = self.true_cost + sum(r.cost for r in self.running.values())
            assert sum(q.served_cost for q in self.pool.queues) == total
            assert getattr(self.pool.order, "total", total) == total

    @invariant()
    def nothing_waits_while_engines_are_empty(self) -> None:
        """With an empty engine up, a class that may start something has a head too large for that engine's context."""
        if not hasattr(self, "scheduler"):
            return
        empty = [e for e in self.pool.places.engines.values() if e.up and e.limit.running == 0 and e.spec.slots]
        for queue in self.pool.queues:
            head = queue.head()
            assert (head is not None) == queue.backlogged
            if head is not None:
                assert all(e.spec.context is not None and e.spec.context < head.max_tokens for e in empty)

    def teardown(self) -> None:
        """Whatever happened, ending everything leaves every counter at zero."""
        if not hasattr(self, "scheduler"):
            return
        for r in list(self.waiting.values()):
            self.scheduler.cancel(r, self.now)
        for r in list(self.running.values()):
            self.scheduler.settle(r, None, Outcome.FAILED, self.now)
            self.scheduler.depart(r)
        for r in self.settled.values():
            self.scheduler.depart(r)
        assert self.scheduler.queued == 0
        assert all(e.limit.running == 0 and getattr(e.limit, "tokens", 0) == 0 for e in self.pool.places.engines.values())
        assert all(t.running == 0 and t.queued == 0 and not t.flows for t in self.scheduler.tenants.values())
        assert all(q.queued == q.cost == q.running == 0 for q in self.pool.queues)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
