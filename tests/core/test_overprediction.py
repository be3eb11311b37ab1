"""A prediction a thousand times too high must cost nobody, once it is corrected: neither its own tenant and class nor others."""

from __future__ import annotations

from collections import Counter

import pytest

from fairlane.core.values import Engine, State, Tenant
from tests.core.world import Size, World, make

N = Size(20, 100, 100)
GIANTS = (100, 32_000, 10_000_000)
A, B = Tenant("A"), Tenant("B")


def keep_going(world: World, ends: int) -> None:
    """Each request that ends is followed by another of its tenant and class."""
    for _ in range(ends):
        r = world.step()
        world.submit(r.tenant, r.rank, N)


def batch_share(world: World, before: Counter[tuple[int, str]]) -> float:
    """Batch's part of what was served since."""
    served = world.served - before
    return served[3, "B"] / sum(served.values())


@pytest.mark.parametrize("giant", GIANTS)
def test_a_tenant_that_comes_after_the_correction_takes_its_turns(giant: int) -> None:
    """The clock that another's inflated tag has driven up does not hold a newcomer back for ever."""
    world = World(make((Engine("e", 4),)), 1)
    for _ in range(20):
        world.submit(A, 1, N)
    big = world.submit(A, 1, Size(20, 100, giant))
    while big.state is not State.RUNNING:
        keep_going(world, 1)
    while big.state is State.RUNNING:
        keep_going(world, 1)
    for _ in range(20):
        world.submit(B, 1, N)
    begin = len(world.started)
    keep_going(world, 1000)
    assert Counter(name for _, name in world.started[begin:])["B"] == pytest.approx(500, abs=30)


@pytest.mark.parametrize("giant", GIANTS)
def test_a_tenant_gets_its_own_refund_although_its_queue_was_empty_meanwhile(giant: int) -> None:
    """Becoming backlogged while a request runs does not freeze what that request was charged."""
    world = World(make((Engine("e", 4),)), 1)
    for _ in range(20):
        world.submit(B, 1, N)
    world.submit(A, 1, Size(20, 100, giant))
    while (1, "A") not in world.started:
        keep_going(world, 1)
    for _ in range(20):
        world.submit(A, 1, N)
    begin = len(world.started)
    keep_going(world, 1000)
    assert Counter(name for _, name in world.started[begin:])["A"] == pytest.approx(500, abs=30)


@pytest.mark.parametrize("giant", GIANTS)
def test_a_class_keeps_its_share_after_its_own_idle_time_request(giant: int) -> None:
    """What a class was served beyond its guarantee is returned when it turns out to be little."""
    world = World(make((Engine("e", 4),)), 1)
    world.submit(B, 3, Size(20, 100, giant))
    world.step()
    for _ in range(20):
        world.submit(A, 0, N)
        world.submit(B, 3, N)
    before = Counter(world.served)
    keep_going(world, 2000)
    assert batch_share(world, before) == pytest.approx(0.10, abs=0.01)


@pytest.mark.parametrize("giant", GIANTS)
def test_a_class_keeps_its_share_although_it_became_backlogged_under_its_giant(giant: int) -> None:
    """A lift while an owed request runs does not freeze what that request was charged."""
    world = World(make((Engine("e", 4),)), 1)
    for _ in range(20):
        world.submit(A, 0, N)
    keep_going(world, 50)
    world.submit(B, 3, Size(20, 100, giant))
    while (3, "B") not in world.started:
        keep_going(world, 1)
    for _ in range(20):
        world.submit(B, 3, N)
    before = Counter(world.served)
    keep_going(world, 2000)
    assert batch_share(world, before) == pytest.approx(0.10, abs=0.01)


@pytest.mark.parametrize("giant", GIANTS)
def test_a_class_keeps_its_share_although_another_ran_a_giant_when_it_came(giant: int) -> None:
    """What was dispatched before a class became backlogged is no debt of its when it is corrected."""
    world = World(make((Engine("e", 4),)), 1)
    big = world.submit(Tenant("X"), 0, Size(20, 100, giant))
    for _ in range(20):
        world.submit(A, 0, N)
        world.submit(B, 3, N)
    while big.state is State.RUNNING:
        keep_going(world, 1)
    before = Counter(world.served)
    keep_going(world, 2000)
    assert batch_share(world, before) == pytest.approx(0.10, abs=0.01)
