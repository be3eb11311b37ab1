"""The rate of service over busy time, and the times to come back that follow from it."""

from __future__ import annotations

import pytest

from fairlane.core.rate import MIN_COMPLETIONS, ServiceRate, Shadow
from fairlane.core.request import Shed
from fairlane.core.values import Engine, PriorityClass, Tenant
from fairlane.errors import Reason
from tests.core.world import Size, World, make, request


def test_idle_time_does_not_count() -> None:
    """100 cost a busy second stays 100 after an hour of quiet, so the first burst of the morning is not refused."""
    rate = ServiceRate(0.0)
    rate.set_backlogged(True, 0.0)
    for second in range(MIN_COMPLETIONS):
        rate.served(100, rate.busy_s(float(second)), 1.0, second + 1.0)
    rate.set_backlogged(False, 20.0)
    assert rate.per_s(20.0) == pytest.approx(100, rel=0.1)
    assert rate.per_s(3620.0) == rate.per_s(20.0)


def test_work_done_without_a_backlog_counts_in_part() -> None:
    """A request that ran while nothing waited says nothing of what the pool can serve."""
    rate = ServiceRate(0.0)
    for second in range(2 * MIN_COMPLETIONS):
        rate.served(100, 0.0, 1.0, second + 1.0)
    assert rate.completions == 0
    assert rate.per_s(100.0) is None


def test_a_rate_falls_while_nothing_finishes() -> None:
    """An engine that hangs must not look as fast as it was."""
    rate = ServiceRate(0.0)
    rate.set_backlogged(True, 0.0)
    for second in range(MIN_COMPLETIONS):
        rate.served(100, float(second), 1.0, second + 1.0)
    assert rate.per_s(20.0) == pytest.approx(100, rel=0.1)
    later = rate.per_s(220.0)
    assert later is not None
    assert later < 20


def test_the_shadow_is_worked_off() -> None:
    """What is expected back grows with each refusal and falls at the rate of service."""
    shadow = Shadow(0.0)
    assert [shadow.add(100, 10.0, 0.0) for _ in range(3)] == [0, 100, 200]
    assert shadow.add(100, 10.0, 25.0) == 50
    assert shadow.add(100, 10.0, 1000.0) == 0


def test_retry_after_grows_from_refusal_to_refusal() -> None:
    """Clients refused one after another are told times that do not fall, within the class's bounds, jitter outside them."""
    classes = (PriorityClass("only", 0, max_queued=20, max_wait_s=1e6, retry_after_min_s=2.0, retry_after_max_s=1e5),)
    world = World(make((Engine("e", 1),), classes), 1)
    tenant = Tenant("t")
    for _ in range(60):
        while world.scheduler.queued < 20:
            world.submit(tenant, 0, Size(100, 25, 25))
        world.step()
    while world.scheduler.queued < 20:
        world.submit(tenant, 0, Size(100, 25, 25))
    world.shed.clear()
    for _ in range(50):
        world.submit(tenant, 0, Size(100, 25, 25))
    waits = [s.retry_after_s for s in world.shed if s.reason is Reason.QUEUE_FULL and s.retry_after_s is not None]
    assert len(waits) == 50
    assert waits == sorted(waits)
    assert 2.0 <= waits[0] < waits[-1] <= 1e5
    assert all(s.jitter_s == max(2.0, (s.retry_after_s or 0) / 2) for s in world.shed)


def test_before_anything_is_known_the_least_time_is_told() -> None:
    """Without a measured rate nobody is sent away for long."""
    scheduler = make((Engine("e", 1),), (PriorityClass("only", 0, max_queued=1, retry_after_min_s=3.0),))
    for _ in range(4):
        scheduler.submit(request(Tenant("t"), 0), 0.0)
    sheds = [d for d in scheduler.poll(0.0) if isinstance(d, Shed)]
    assert [s.retry_after_s for s in sheds] == [3.0, 3.0]


def test_a_class_alone_counts_on_the_whole_pool() -> None:
    """A class that was never seen is not judged by its guarantee while no other waits, only by what it would really get."""
    classes = (
        PriorityClass("known", 0, 3000, max_wait_s=1e6, max_queued=1000),
        PriorityClass("fresh", 1, 1000, max_wait_s=2000.0, max_queued=1000),
    )
    world = World(make((Engine("e", 1),), classes), 1)
    one, other = Tenant("one"), Tenant("other")
    for _ in range(60):
        world.submit(one, 0, Size(100, 25, 25))
    for _ in range(60):
        world.step()
    assert world.scheduler.queued == 0
    for _ in range(9):
        world.submit(other, 1, Size(100, 25, 25))
    assert world.shed == []
    for _ in range(40):
        world.submit(one, 0, Size(100, 25, 25))
    world.submit(other, 1, Size(100, 25, 25))
    assert [s.reason for s in world.shed] == [Reason.WAIT_TOO_LONG]
