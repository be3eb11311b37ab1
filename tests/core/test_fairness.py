"""Shares of classes and tenants under a standing backlog, against an independent account of what was served."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from fairlane.core.values import BASIS_POINTS, Engine, PriorityClass, Tenant
from tests.core.world import FOUR, Size, World, make

RATIOS = (1 / 3, 0.5, 1.0, 2.0, 3.0)
LARGEST_OUTPUT = 200
LARGEST_CHARGE = 4 * LARGEST_OUTPUT + 4 * 3 * LARGEST_OUTPUT  # the largest prompt, and an output predicted three times too long


def sized(world: World) -> Size:
    """A request of a random true size, predicted up to three times wrong both ways."""
    output = world.random.randint(1, LARGEST_OUTPUT)
    return Size(world.random.randint(1, 4 * LARGEST_OUTPUT), output, max(1, round(output * world.random.choice(RATIOS))))


def served_while_backlogged(depth: int, seed: int, tenants: dict[int, list[Tenant]]) -> Counter[tuple[int, str]]:
    """True cost dispatched over 3,000 ends, in which every tenant of every class has something waiting at every moment."""
    world = World(make((Engine("e", depth),)), seed)

    def fill() -> None:
        for rank, members in tenants.items():
            for tenant in members:
                while world.scheduler.tenants[tenant.name].queued < 3:
                    world.submit(tenant, rank, sized(world))

    blocker = Tenant("blocker")
    for _ in range(depth):
        world.submit(blocker, 0, Size(10, 1, 1))
    for rank, members in tenants.items():
        for tenant in members:
            world.submit(tenant, rank, sized(world))
    fill()
    before = Counter(world.dispatched)
    for _ in range(3000):
        world.step()
        fill()
    return world.dispatched - before


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("depth", [1, 8, 32])
def test_every_class_gets_its_minimum_and_the_first_the_rest(depth: int, seed: int) -> None:
    """Shortfall of a guarantee stays within 2 of the largest charge, whatever the predictions are worth."""
    served = served_while_backlogged(depth, seed, {c.rank: [Tenant(f"{c.name}-{i}") for i in range(3)] for c in FOUR})
    total = sum(served.values())
    by_class = {c.rank: sum(v for (rank, _), v in served.items() if rank == c.rank) for c in FOUR}
    for c in FOUR:
        assert by_class[c.rank] >= c.min_share / BASIS_POINTS * total - 2 * LARGEST_CHARGE
    assert by_class[0] >= 0.65 * total - 8 * LARGEST_CHARGE


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("depth", [1, 8, 32])
def test_tenants_share_by_weight(depth: int, seed: int) -> None:
    """Tenants of one class differ in cost over weight by at most 4 of the largest charge, whatever the predictions are worth."""
    tenants = [Tenant("one"), Tenant("two", weight=2), Tenant("three", weight=3)]
    served = served_while_backlogged(depth, seed, {1: tenants})
    per_weight = [served[1, t.name] / t.weight for t in tenants]
    assert max(per_weight) - min(per_weight) <= 4 * LARGEST_CHARGE


@pytest.mark.parametrize("times", [1, 20])
def test_three_to_one_in_cost_also_with_longer_prompts(times: int) -> None:
    """Weights 3:1 give 3:1 in token cost within 5 % over 2,000 requests, also when one sends prompts 20 times longer."""
    world = World(make((Engine("e", 4),)), 1)
    heavy, light = Tenant("heavy", weight=3), Tenant("light")
    sizes = {"heavy": Size(100, 20, 20), "light": Size(100 * times, 20, 20)}
    served: dict[str, int] = {"heavy": 0, "light": 0}
    for tenant in (heavy, light):
        for _ in range(8):
            world.submit(tenant, 2, sizes[tenant.name])
    for _ in range(2000):
        r = world.step()
        served[r.tenant.name] += sizes[r.tenant.name].prompt + 80
        world.submit(r.tenant, 2, sizes[r.tenant.name])
    assert served["heavy"] / served["light"] == pytest.approx(3.0, rel=0.05)


def test_without_shares_the_order_is_strict() -> None:
    """With every minimum share 0, nothing of a lower class starts while a higher one waits."""
    world = World(make((Engine("e", 2),), tuple(PriorityClass(c.name, c.rank, 0, max_wait_s=1e6) for c in FOUR)), 3)
    low, high = Tenant("low"), Tenant("high")
    for _ in range(20):
        world.submit(low, 3, Size(100, 20, 20))
    for _ in range(10):
        world.submit(high, 0, Size(100, 20, 20))
    for _ in range(30):
        world.step()
    assert world.started == [(3, "low")] * 2 + [(0, "high")] * 10 + [(3, "low")] * 18


def test_idle_tenant_gets_no_saved_up_burst() -> None:
    """A tenant that was away takes turns on its return; it is not owed the time it was away."""
    world = World(make((Engine("e", 1),)), 5)
    here, back = Tenant("here"), Tenant("back")
    size = Size(100, 25, 25)
    world.submit(back, 1, size)
    for _ in range(50):
        world.submit(here, 1, size)
    for _ in range(40):
        world.step()
    begin = len(world.started)
    for _ in range(20):
        world.submit(back, 1, size)
    for _ in range(10):
        world.step()
    turns = [name for _, name in world.started[begin:]]
    assert 4 <= turns.count("back") <= 6
    assert "back" in turns[:2]


def test_refund_does_not_become_credit() -> None:
    """A tenant whose 32 running requests were predicted a hundred times too long takes turns afterwards like any other."""
    world = World(make((Engine("e", 32),)), 7)
    refunded, peer = Tenant("refunded"), Tenant("peer")
    for _ in range(32):
        world.submit(refunded, 1, Size(10, 40, 4000))
    for _ in range(200):
        world.submit(peer, 1, Size(10, 40, 40))
    for _ in range(64):
        world.step()
    begin = len(world.started)
    for _ in range(50):
        world.submit(refunded, 1, Size(10, 40, 40))
    for _ in range(40):
        world.step()
    turns = [name for _, name in world.started[begin:]]
    assert turns.count("refunded") == pytest.approx(20, abs=2)


def test_a_large_head_gets_in_past_smaller_ones() -> None:
    """A request that needs a whole engine's token budget starts after a bounded bypass, though small ones keep coming."""
    engines = (Engine("a", 8, kv_tokens=1000), Engine("b", 8, kv_tokens=1000))
    world = World(make(engines), 11)
    small, large = Tenant("small"), Tenant("large")
    for _ in range(40):
        world.submit(small, 2, Size(100, 20, 20))
    world.submit(large, 1, Size(800, 150, 150))
    for _ in range(60):
        world.step()
        world.submit(small, 2, Size(100, 20, 20))
        if (1, "large") in world.started:
            break
    assert (1, "large") in world.started
    assert world.scheduler.pools["main"].places.held is None


def test_a_guarantee_is_real_for_large_heads() -> None:
    """A batch class of requests that only fit an empty engine still gets its 10 % while smaller ones saturate the pool."""
    world = World(make((Engine("a", 8, kv_tokens=1000), Engine("b", 8, kv_tokens=1000))), 13)
    fast, batch = Tenant("fast"), Tenant("batch")
    small, big = Size(60, 40, 40), Size(700, 250, 250)
    for _ in range(40):
        world.submit(fast, 0, small)
    for _ in range(4):
        world.submit(batch, 3, big)
    for _ in range(4000):
        r = world.step()
        world.submit(r.tenant, r.rank, small if r.rank == 0 else big)
    total = sum(world.served.values())
    assert world.served[3, "batch"] >= 0.10 * total - 2 * (700 + 4 * 250)


def test_short_requests_overtake_within_the_window_only() -> None:
    """Inside a tenant a short request passes a long one that came within the window, and no older one."""
    world = World(make((Engine("e", 1),)), 17)
    tenant = Tenant("t")
    world.submit(Tenant("blocker"), 0, Size(10, 1, 1))
    long = world.submit(tenant, 0, Size(4000, 500, 500))
    soon = world.submit(tenant, 0, Size(10, 1, 1))
    world.now = 2.0
    late = world.submit(tenant, 0, Size(10, 1, 1))
    order = [world.step().id for _ in range(4)]
    assert order[1:] == [soon.id, long.id, late.id]


def test_a_head_that_waited_long_competes_one_class_higher_and_no_more() -> None:
    """After `promote_after_s` a batch head goes with the class above by arrival, still behind the most urgent one."""
    classes = tuple(replace(c, min_share=0, promote_after_s=10.0 if c.rank == 3 else None) for c in FOUR)
    world = World(make((Engine("e", 1),), classes), 1)
    world.submit(Tenant("blocker"), 0, Size(20, 1, 1))
    for rank in (3, 2, 0):
        world.now += 0.1
        world.submit(Tenant(f"first-{rank}"), rank, Size(10, 1, 1))
    for expected in (0, 3, 2):
        world.step()
        assert world.started[-1][0] == expected
