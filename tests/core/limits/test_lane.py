"""The fast lane: a part of each engine that short requests find free, whatever waits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from fairlane.core.request import Request, Start
from fairlane.core.scheduler import Scheduler
from fairlane.core.values import Engine, Outcome, Tenant, Usage
from fairlane.policies.limits.nested import NestedLimit
from tests.core.world import make, request

A, B = Tenant("a"), Tenant("b")
LANE = Engine("e", 4, lane_places=1, lane_kv=0.05, lane_output=64)


def short(tenant: Tenant = A, rank: int = 0, now: float = 0.0) -> Request:
    """A request that may use the lane."""
    r = request(tenant, rank, now, prompt=10, output=16)
    r.short = True
    return r


def submitted(scheduler: Scheduler, requests: list[Request], now: float = 0.0) -> list[Request]:
    """Which requests start when these are fed one after another."""
    started = []
    for r in requests:
        scheduler.submit(r, now)
        started += [d.request for d in scheduler.poll(now) if isinstance(d, Start)]
    return started


def end(scheduler: Scheduler, r: Request, now: float = 1.0) -> list[Request]:
    """Which requests start when this one ends."""
    scheduler.settle(r, Usage(r.prompt_tokens, r.output_tokens), Outcome.COMPLETED, now)
    scheduler.depart(r)
    return [d.request for d in scheduler.poll(now) if isinstance(d, Start)]


def test_fc_36_a_short_request_starts_at_once_behind_a_long_queue() -> None:
    """Three of four slots go to others, the queue waits, and each short request starts as soon as the one before it ends."""
    scheduler = make((LANE,))
    long = [request(A, 0, prompt=1000, output=1000) for _ in range(20)]
    assert submitted(scheduler, long) == long[:3]
    quick = [short(B) for _ in range(20)]
    assert submitted(scheduler, quick) == quick[:1]
    for one, following in pairwise(quick):
        assert end(scheduler, one) == [following]
    assert scheduler.pools["main"].places.running == 4


def test_the_lane_does_not_take_what_others_free() -> None:
    """A place that another request frees goes on in the order of classes and tenants, not to the next short one."""
    scheduler = make((LANE,))
    long = [request(A, 0, prompt=1000, output=1000) for _ in range(20)]
    submitted(scheduler, long)
    quick = [short(A, now=5.0) for _ in range(5)]
    assert submitted(scheduler, quick, 5.0) == quick[:1]
    assert end(scheduler, long[0], 6.0) == [long[3]]


def test_only_short_requests_fill_the_last_place() -> None:
    """A short one that runs fills the lane first, so the other places stay for others."""
    limit = NestedLimit(LANE)
    quick = short()
    limit.take(quick)
    for _ in range(3):
        other = request(A, 0)
        assert limit.fits(other)
        limit.take(other)
    assert not limit.fits(short())
    limit.release(quick)
    assert limit.fits(short())
    assert not limit.fits(request(A, 0))


@pytest.mark.parametrize(("slots", "places", "others"), [(3, 1, 3), (4, 4, 3), (11, 4, 9), (40, 8, 36), (40, 1, 39)])
def test_what_is_more_than_a_tenth_is_lent_out(slots: int, places: int, others: int) -> None:
    """Others get nine tenths of the slots, or all but the lane's, and all of fewer than four."""
    limit = NestedLimit(replace(LANE, slots=slots, lane_places=places))
    count = 0
    while limit.fits(r := request(A, 0)):
        limit.take(r)
        count += 1
    assert count == others


def test_a_part_of_the_kv_is_kept_too() -> None:
    """Others leave a twentieth of the KV to short requests; those that run have it already."""
    limit = NestedLimit(replace(LANE, slots=100, kv_tokens=10_000))
    limit.take(request(A, 0, prompt=1000, output=1000))
    assert not limit.fits(request(A, 0, prompt=6000, output=900))
    assert limit.fits(request(A, 0, prompt=6000, output=840))
    quick = request(A, 0, prompt=436, output=10)
    quick.short = True
    limit.take(quick)
    assert limit.short_final == 500
    assert limit.fits(request(A, 0, prompt=6000, output=900))


def test_who_outgrows_the_lane_leaves_it() -> None:
    """Beyond its output the request counts as any other, and the lane is free for the next; books are even in the end."""
    limit = NestedLimit(LANE)
    running = [request(A, 0) for _ in range(3)]
    quick = short()
    for r in (*running, quick):
        limit.take(r)
    limit.progress(quick, 65)
    assert (quick.short, limit.short_running) == (False, 0)
    limit.release(running[0])
    assert limit.fits(short())
    assert not limit.fits(request(A, 0))
    for r in (*running[1:], quick):
        limit.release(r)
    assert (limit.running, limit.short_running, limit.short_final, limit.tokens, limit.final) == (0, 0, 0, 0, 0)


def test_a_tenant_at_its_limit_does_not_block_the_lane() -> None:
    """Its short requests wait for its own; those of others behind them pass."""
    scheduler = make((LANE,))
    bound = replace(B, max_running=1)
    own = request(bound, 0)
    assert submitted(scheduler, [own]) == [own]
    long = [request(A, 0, prompt=1000, output=1000) for _ in range(9)]
    submitted(scheduler, long)
    stuck = short(bound)
    assert submitted(scheduler, [stuck]) == []
    quick = short(A)
    assert submitted(scheduler, [quick]) == [quick]
    end(scheduler, long[0])
    assert stuck in end(scheduler, own)


def test_the_lane_moves_no_clock() -> None:
    """A short request that passes others is charged to its tenant, and does not lift a tenant that comes later."""
    scheduler = make((LANE,))
    long = [request(A, 0, prompt=1000, output=1000) for _ in range(9)]
    submitted(scheduler, long)
    queue = scheduler.pools["main"].queues[0]
    before = queue.turns.clock.v
    quick = short(B)
    submitted(scheduler, [quick])
    assert queue.turns.clock.v == before
    assert queue.flows["b"].tag == before + quick.flow_charge


def test_a_lane_of_another_size_keeps_its_books() -> None:
    """What short requests will hold follows the output that the lane is for, also for those that run when it changes."""
    limit = NestedLimit(replace(LANE, kv_tokens=10_000))
    quick = short()
    limit.take(quick)
    limit.reconfigure(replace(LANE, kv_tokens=10_000, lane_output=100))
    assert limit.short_final == 110
    limit.release(quick)
    assert limit.short_final == 0


def test_short_requests_do_not_pass_a_large_head_for_ever() -> None:
    """One that fits no engine beside them starts after a bounded cost of what the lane lets by, in its own flow too."""
    scheduler = make((replace(LANE, slots=8, kv_tokens=1000),))
    first, large = short(A, 1), request(A, 1, prompt=845, output=10)
    assert submitted(scheduler, [first, large]) == [first]
    running = [first]
    for now in range(1, 60):
        running += submitted(scheduler, [short(A, 1, now)], now)
        running += end(scheduler, running.pop(0), now)
        if large in running:
            return
    pytest.fail("it still waits")
