"""What is let in, what gives way, and what an engine that is idle must not be kept from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.core.request import Decision, Request, Shed, Start
from fairlane.core.scheduler import Scheduler
from fairlane.core.tenants import TenantState
from fairlane.core.values import BucketRate, Engine, Outcome, PriorityClass, Tenant, Usage
from fairlane.errors import Reason
from tests.core.world import make, request

ONE = (PriorityClass("c", 0, max_wait_s=86400.0, max_queued=10_000),)
A, B = Tenant("A"), Tenant("B")


def submit(scheduler: Scheduler, *requests: Request, now: float = 0.0) -> list[Decision]:
    """Feeds requests one after the other and returns all decisions."""
    decisions: list[Decision] = []
    for r in requests:
        scheduler.submit(r, now)
        decisions += scheduler.poll(now)
    return decisions


def shed(decisions: list[Decision]) -> list[tuple[str, Reason]]:
    """Whose requests were shed, and why."""
    return [(d.request.tenant.name, d.reason) for d in decisions if isinstance(d, Shed)]


def test_a_request_for_the_large_engine_does_not_block_the_small_one() -> None:
    """While the only engine with a long context is down, the others go on, and the largest that is up takes what exceeds it."""
    scheduler = make((Engine("big", 4, context=32768), Engine("small", 4, context=4096)), ONE)
    scheduler.engine_report("main", "big", up=False)
    decisions = submit(scheduler, request(A, 0, prompt=6000), *(request(B, 0) for _ in range(3)))
    assert [d.engine for d in decisions if isinstance(d, Start)] == ["small"] * 4


def test_an_engine_of_unknown_context_that_is_down_counts_for_nothing() -> None:
    """A large cap on the output is sent to the engine that is there."""
    scheduler = make((Engine("x", 4), Engine("y", 4, context=4096)), ONE)
    scheduler.engine_report("main", "x", up=False)
    r = request(A, 0)
    r.max_tokens = 8100
    assert [d.engine for d in submit(scheduler, r) if isinstance(d, Start)] == ["y"]


def test_a_hold_ends_with_the_request_it_was_made_for() -> None:
    """After the held head has left, an engine that its successor does not suit serves others again."""
    classes = (
        PriorityClass("hi", 0, max_wait_s=1e6, max_queued=10_000),
        PriorityClass("lo", 1, 1000, max_wait_s=1e6, max_queued=10_000),
    )
    scheduler = make((Engine("small", 8, kv_tokens=1000, context=4096), Engine("big", 1, context=32768)), classes)
    running = [d.request for d in submit(scheduler, request(A, 0, prompt=8000)) if isinstance(d, Start)]
    assert len(running) == 1
    running = [d.request for d in submit(scheduler, *(request(A, 0) for _ in range(30))) if isinstance(d, Start)]
    large = request(B, 1, prompt=850, output=80)
    submit(scheduler, large, request(Tenant("C"), 1, prompt=6000))
    places = scheduler.pools["main"].places
    now = 0.0
    while places.held is None:
        now += 1.0
        r = running.pop(0)
        scheduler.settle(r, Usage(100, 25), Outcome.COMPLETED, now)
        scheduler.depart(r)
        running += [d.request for d in submit(scheduler, request(A, 0, now), now=now) if isinstance(d, Start)]
        assert now < 500
    scheduler.cancel(large, now)
    scheduler.poll(now)
    assert places.held is None
    assert places.engines["small"].limit.running == 7


def test_nobody_is_displaced_in_vain() -> None:
    """A newcomer that would be refused all the same costs no waiting request its place."""
    classes = (PriorityClass("c", 0, max_wait_s=1e6, max_queued=100, max_queued_cost=1000),)
    scheduler = make((Engine("e", 1),), classes)
    submit(scheduler, request(Tenant("z"), 0))
    small = [request(t, 0, prompt=100, output=0) for t in (A, B) for _ in range(5)]
    assert shed(submit(scheduler, *small)) == []
    assert shed(submit(scheduler, request(Tenant("C"), 0, prompt=450, output=0))) == [("C", Reason.QUEUE_FULL)]
    assert scheduler.pools["main"].queues[0].cost == 1000


def test_a_newcomer_displaces_the_newest_of_the_greediest() -> None:
    """A tenant that fills the class gives way to one that has nothing waiting."""
    classes = (PriorityClass("c", 0, max_wait_s=1e6, max_queued=4),)
    scheduler = make((Engine("e", 1),), classes)
    mine = [request(A, 0) for _ in range(5)]
    submit(scheduler, *mine)
    decisions = submit(scheduler, request(B, 0))
    assert [(d.request.id, d.reason) for d in decisions if isinstance(d, Shed)] == [(mine[-1].id, Reason.DISPLACED)]
    assert shed(submit(scheduler, request(A, 0))) == [("A", Reason.QUEUE_FULL)]


def test_what_can_never_wait_is_told_so() -> None:
    """A request beyond its class's whole bound in cost starts at once or is told that coming back cannot help."""
    classes = (PriorityClass("c", 0, max_wait_s=1e6, max_queued_cost=100),)
    scheduler = make((Engine("e", 1),), classes)
    large = [request(A, 0, prompt=500, output=0) for _ in range(2)]
    assert shed(submit(scheduler, *large)) == [("A", Reason.REQUEST_OVER_LIMIT)]


@pytest.mark.parametrize("max_queued", [0, 5])
def test_an_idle_slot_is_used_although_a_parked_request_waits(max_queued: int) -> None:
    """What waits only for its own tenant's limit holds nobody else up, whatever bound is reached."""
    classes = (PriorityClass("c", 0, max_wait_s=1e6, max_queued=max_queued), PriorityClass("d", 1, max_wait_s=1e6))
    scheduler = make((Engine("e", 8),), classes, max_queued=1)
    narrow = Tenant("narrow", max_running=1)
    submit(scheduler, request(narrow, 1), request(narrow, 1))
    decisions = submit(scheduler, request(B, 0))
    assert [d.request.tenant.name for d in decisions if isinstance(d, Start)] == ["B"]


def test_an_outage_does_not_make_the_pool_look_slow() -> None:
    """Time in which no engine was up, and requests that failed, say nothing of the rate."""
    classes = (
        PriorityClass("fast", 0, 3000, max_wait_s=8.0, max_queued=200),
        PriorityClass("batch", 1, 1000, max_wait_s=86400.0, max_queued=100_000),
    )
    scheduler = make((Engine("e", 4),), classes)
    running = [d.request for d in submit(scheduler, *(request(B, 1) for _ in range(400))) if isinstance(d, Start)]
    now = 0.0
    for _ in range(50):
        now += 1.0
        ended, running = running, []
        for r in ended:
            scheduler.settle(r, Usage(100, 25), Outcome.COMPLETED, now)
            scheduler.depart(r)
        running = [d.request for d in scheduler.poll(now) if isinstance(d, Start)]
    rate = scheduler.pools["main"].rate
    before = rate.per_s(now)
    assert before == pytest.approx(800, rel=0.05)
    scheduler.engine_report("main", "e", up=False)
    for r in running:
        scheduler.settle(r, None, Outcome.FAILED, now)
        scheduler.depart(r)
    scheduler.poll(now)
    scheduler.engine_report("main", "e", up=True)
    assert rate.per_s(now + 1800.0) == before


@given(
    used=st.lists(st.tuples(st.integers(1, 80), st.integers(0, 160), st.floats(0.0, 3.0)), max_size=8),
    tokens=st.integers(1, 150),
    limits=st.tuples(st.booleans(), st.booleans()),
)
def test_a_rate_limit_refuses_exactly_what_is_not_there(used: list[tuple[int, int, float]], tokens: int, limits: tuple[bool, bool]) -> None:
    """What both buckets hold passes, what they never hold never will, and the rest passes after the time that is told, not before."""
    spec = Tenant("t", requests=BucketRate(0.5, 4) if limits[0] else None, tokens=BucketRate(10, 100) if limits[1] else None)
    state, now = TenantState(spec, 0.0), 0.0
    for charged, real, pause in used:
        r = request(spec, 0, prompt=charged, output=0)
        state.charge(r, now)
        state.settle(r, real, now + pause)
        now += pause
    wanted = request(spec, 0, prompt=tokens, output=0)
    enough = all(b is None or b.level(now) >= n for b, n in ((state.requests, 1), (state.tokens, tokens)))
    shed = state.refusal(wanted, now)
    assert (shed is None) == enough
    if shed is not None and shed.reason is Reason.REQUEST_OVER_LIMIT:
        assert (tokens > 100, shed.retry_after_s) == (True, None)
    elif shed is not None:
        assert shed.retry_after_s is not None
        assert tokens <= 100 or not limits[1]
        fills_in = 8.0 if shed.reason is Reason.RATE_LIMIT_REQUESTS else 10.0
        assert shed.jitter_s == max(0.0, min(shed.retry_after_s / 2, fills_in - shed.retry_after_s))
        assert state.refusal(wanted, now + 0.9 * shed.retry_after_s) is not None
        assert state.refusal(wanted, now + shed.retry_after_s + 1e-6) is None
