"""The estimate of the time to the first token, and what is shed by it."""

from __future__ import annotations

import random

import pytest

from fairlane.core.values import Engine, PriorityClass, Tenant
from fairlane.errors import Reason
from fairlane.policies.placement.ttft import SAMPLES_MIN, FirstTokenTime
from tests.core.world import Size, World, make, placement


def test_nothing_is_said_before_enough_was_seen() -> None:
    """An estimate of nothing would shed; so there is none."""
    ttft = FirstTokenTime()
    for _ in range(SAMPLES_MIN - 1):
        ttft.observe(1000, 1.0)
    assert ttft.seconds(1000) == 0.0


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_line_is_found_and_half_of_the_estimates_are_too_low(noise: float) -> None:
    """On an engine that needs 30 ms and 100 µs a token, the estimate is the median within a tenth."""
    dice = random.Random(3)
    ttft = FirstTokenTime()

    def actual(tokens: int) -> float:
        return (0.03 + 1e-4 * tokens) * dice.lognormvariate(0.0, noise)

    for _ in range(300):
        tokens = dice.randint(10, 8000)
        ttft.observe(tokens, actual(tokens))
    low = 0
    for _ in range(1000):
        tokens = dice.randint(10, 8000)
        took = actual(tokens)
        low += ttft.seconds(tokens) < took
        ttft.observe(tokens, took)
    assert ttft.seconds(4000) == pytest.approx(0.43, rel=0.15)
    if noise:
        assert 400 <= low <= 600


@pytest.mark.parametrize("fixed_s", [0.03, 5.0])
def test_tokens_of_a_time_go_by_the_rate_of_prefilling(fixed_s: float) -> None:
    """A time that each request takes anyway bounds nothing, and two usual loads always pass; nothing is said without a rate."""
    ttft, level = FirstTokenTime(), FirstTokenTime()
    for tokens in range(100, 100 * SAMPLES_MIN, 100):
        ttft.observe(tokens, fixed_s + 1e-4 * tokens)
    assert ttft.tokens(1.0) is None
    for tokens in range(100, 4100, 100):
        ttft.observe(tokens, fixed_s + 1e-4 * tokens)
        level.observe(500, fixed_s)
    assert ttft.tokens(1.0) == pytest.approx(10_000, rel=0.06)
    assert 2 * 2000 < (ttft.tokens(0.0) or 0) < 2 * 4000
    assert level.tokens(1.0) is None


@pytest.mark.parametrize(("engine", "slo_s", "expected"), [(None, 2.0, 10_000), (500, 2.0, 500), (None, None, None)])
def test_prompts_ahead_are_bounded_by_half_the_most_urgent_objective(engine: int | None, slo_s: float | None, expected: int | None) -> None:
    """An engine that needs 30 ms and 100 µs a token prefills 10,000 in a second; a number that is set stays, no objective sets none."""
    classes = (PriorityClass("fast", 0, max_wait_s=100.0, ttft_slo_s=slo_s), PriorityClass("slow", 1, max_wait_s=100.0, ttft_slo_s=None))
    world = World(make((Engine("e", 4, prefill_tokens=engine),), classes), 1)
    pool = world.scheduler.pools["main"]
    for tokens in range(100, 4100, 100):
        placement(world.scheduler).ttft.observe(tokens, 0.03 + 1e-4 * tokens)
    r = world.submit(Tenant("t"), 1, Size(1000, 50, 50))
    world.scheduler.progress(r, 1, 0.13)
    limit = pool.places.engines["e"].limit
    assert limit.prefill_tokens == (expected if expected is None else pytest.approx(expected, rel=0.06))


def test_a_head_that_would_be_late_is_shed_before_it_starts() -> None:
    """With 2 s to the first token and a promise of 3, a request that waited 1.5 s is told so, though a slot is free soon."""
    classes = (PriorityClass("fast", 0, max_wait_s=100.0, ttft_slo_s=3.0),)
    world = World(make((Engine("e", 1),), classes), 1)
    tenant = Tenant("t")
    for _ in range(SAMPLES_MIN):
        placement(world.scheduler).ttft.observe(100, 2.0)
    first = world.submit(tenant, 0, Size(100, 25, 25))
    world.submit(tenant, 0, Size(100, 25, 25))
    world.now = 0.9
    world.pump()
    assert world.shed == []
    world.now = 1.5
    world.pump()
    assert [s.reason for s in world.shed] == [Reason.DEADLINE_MISSED]
    world.scheduler.progress(first, 1, world.now)
    assert first.first_token_at == world.now


def test_what_is_prefilled_already_is_not_waited_for() -> None:
    """A long prompt ahead that its engine began with a while ago delays a newcomer by what is left of it, not by all of it."""
    classes = (PriorityClass("fast", 0, max_wait_s=100.0, ttft_slo_s=3.0), PriorityClass("slow", 1, max_wait_s=100.0))
    world = World(make((Engine("e", 9),), classes), 1)
    for tokens in range(100, 100 * (SAMPLES_MIN + 1), 100):
        placement(world.scheduler).ttft.observe(tokens, tokens / 1000)
    world.submit(Tenant("long"), 1, Size(4000, 1, 1))  # prefilled after 4 s
    world.now = 1.0
    world.submit(Tenant("t"), 0, Size(500, 1, 1))  # 3.5 s more
    assert [s.reason for s in world.shed] == [Reason.DEADLINE_MISSED]
    world.now = 2.0
    r = world.submit(Tenant("t"), 0, Size(500, 1, 1))  # 2.5 s more
    assert world.started[-1] == (0, "t")
    assert (r.prefills_since, r.prefill_ahead) == (0.0, 4500)


def test_the_clock_of_a_prefill_begins_anew_with_each_first_token() -> None:
    """A first token tells that its engine now prefills the next prompt; one that has nothing to prefill begins with the newcomer."""
    world = World(make((Engine("e", 9),)), 1)
    engine = world.scheduler.pools["main"].places.engines["e"]
    first, second = (world.submit(Tenant("t"), 0, Size(100, 1, 1)) for _ in range(2))
    world.scheduler.progress(first, 1, 3.0)
    assert (second.prefills_since, engine.prefills_since) == (0.0, 3.0)
    world.now = 4.0
    assert world.submit(Tenant("t"), 0, Size(100, 1, 1)).prefills_since == 3.0
    for r in list(engine.limit._requests):  # type: ignore[attr-defined]
        world.scheduler.progress(r, 1, 5.0)
    world.now = 6.0
    assert world.submit(Tenant("t"), 0, Size(100, 1, 1)).prefills_since == 6.0


def test_a_long_backlog_refuses_nobody_who_is_promised_a_first_token() -> None:
    """What waits ahead is shed before a newcomer is late, so only the longest wait of its class keeps it out."""
    classes = (PriorityClass("fast", 0, max_wait_s=3000.0, ttft_slo_s=900.0, max_queued=100),)
    world = World(make((Engine("e", 1),), classes), 1)
    world.submit(Tenant("t"), 0, Size(100, 25, 25))
    for _ in range(60):  # with one waiting, so that the rate is known
        world.submit(Tenant("t"), 0, Size(100, 25, 25))
        world.step()
    while not world.shed:
        world.submit(Tenant("t"), 0, Size(100, 25, 25))
    rate = world.scheduler.pools["main"].rate.per_s(world.now)
    assert [s.reason for s in world.shed] == [Reason.WAIT_TOO_LONG]
    assert rate is not None
    assert world.scheduler.pools["main"].queues[0].cost / rate == pytest.approx(3000.0, rel=0.1)


def test_output_beyond_the_prediction_is_charged_as_it_comes() -> None:
    """In steps of 64 tokens class and tenant pay for what runs on, and the end settles the rest."""
    world = World(make((Engine("e", 1),)), 1)
    r = world.submit(Tenant("t"), 1, Size(100, 200, 50))
    queue = world.scheduler.pools["main"].queues[1]
    assert queue.served_cost == 300
    for produced in (1, 50, 113, 114, 177, 178):
        world.scheduler.progress(r, produced, 1.0)
    assert queue.served_cost == r.cost == 300 + 4 * 128
    world.step()
    assert queue.served_cost == 100 + 4 * 200
