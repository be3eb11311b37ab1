"""Every policy that can be named: what it promises, and what it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from fairlane.core.values import Engine, Tenant
from fairlane.plugins import POLICIES, policy
from tests.core.world import FOUR, Size, World, make

SIZE = Size(100, 25, 25)
A, B = Tenant("a"), Tenant("b")


def starts(name: str, arrivals: Sequence[tuple[float, int, Tenant]], *, size: Size = SIZE) -> list[tuple[int, str]]:
    """The order in which requests start on one slot that is busy while they arrive at (time, rank, tenant)."""
    world = World(make((Engine("e", 1),), policy=name), 1)
    world.submit(Tenant("blocker"), 0, Size(10, 1, 1))
    for at, rank, tenant in arrivals:
        world.now = at
        world.submit(tenant, rank, size)
    for _ in range(len(arrivals) + 1):
        world.step()
    return world.started[1:]


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_serves_everything_once(name: str) -> None:
    """Whatever the order, all that arrived starts exactly once."""
    arrivals = [(i / 10, (7 * i) % 4, (A, B)[i % 2]) for i in range(40)]
    assert Counter(starts(name, arrivals)) == Counter((rank, tenant.name) for _, rank, tenant in arrivals)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_says_whether_a_start_was_owed(name: str) -> None:
    """An engine that is told the order of its requests is told by it; nobody is owed anything who did not wait for others."""
    world = World(make((Engine("e", 1),), policy=name), 1)
    at_once, waited = world.submit(A, 0, SIZE), world.submit(A, 3, SIZE)
    world.step()
    world.step()
    assert (at_once.owed, waited.owed) == (False, False)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_takes_new_shares(name: str) -> None:
    """Other shares and back again owe nobody anything where nothing was served."""
    one = policy(name, FOUR).classes
    one.reconfigure(tuple(replace(c, min_share=0) for c in FOUR))
    one.reconfigure(FOUR)
    assert [one.is_owed(rank) for rank in range(4)] == [False] * 4


def test_a_class_that_loses_its_share_is_owed_nothing() -> None:
    """What it was behind with is no claim without a guarantee, whatever is corrected later; its requests go by rank."""
    world = World(make((Engine("e", 1),)), 1)
    world.submit(A, 0, SIZE)
    for rank in (3, 0, 0):
        world.submit(B, rank, Size(100, 25, 250))
    pool = world.scheduler.pools["main"]
    world.step()
    assert pool.order.is_owed(3)
    world.scheduler.reconfigure("main", tuple(replace(c, min_share=0) for c in FOUR))
    while world.scheduler.queued:
        assert not pool.order.is_owed(3)
        world.step()
    assert [rank for rank, _ in world.started] == [0, 0, 0, 3]


def test_fifo_is_by_arrival_alone() -> None:
    """Class and tenant make no difference."""
    assert starts("fifo", [(1, 3, A), (2, 0, B), (3, 1, A), (4, 0, B)]) == [(3, "a"), (0, "b"), (1, "a"), (0, "b")]


@pytest.mark.parametrize("name", ["strict", "submit_aging"])
def test_strict_and_aging_at_submission_are_the_same(name: str) -> None:
    """The most urgent class first, by arrival inside it: a key computed at submission ages nothing."""
    arrivals = [(1, 3, A), (2, 0, B), (500, 1, A), (501, 0, A), (502, 0, B)]
    assert starts(name, arrivals) == [(0, "b"), (0, "a"), (0, "b"), (1, "a"), (3, "a")]


def test_aging_lets_a_class_be_overtaken_only_within_its_head_start() -> None:
    """With 10 s a step, a batch request 31 s older than a realtime one goes first, one 29 s older does not."""
    assert starts("aging", [(0, 3, A), (31, 0, B)]) == [(3, "a"), (0, "b")]
    assert starts("aging", [(2, 3, A), (31, 0, B)]) == [(0, "b"), (3, "a")]


def test_weighted_shares_follow_the_weights() -> None:
    """Two backlogged classes of 30 and 10 % share 3:1, whichever is more urgent."""
    order = starts("weighted", [(1, rank, A) for rank in (0, 3) for _ in range(40)])
    assert Counter(rank for rank, _ in order[:40])[0] == pytest.approx(30, abs=1)


@pytest.mark.parametrize("name", ["vtc", "drr"])
def test_flat_policies_share_between_tenants_whatever_their_class(name: str) -> None:
    """Two backlogged tenants of different classes share equally, and one with five times the weight gets five times as much."""
    order = starts(name, [(1, 0, A) for _ in range(40)] + [(1, 3, B) for _ in range(40)])
    assert Counter(tenant for _, tenant in order[:40])["a"] == pytest.approx(20, abs=5)
    heavy = Tenant("heavy", weight=5)
    order = starts(name, [(1, 0, A) for _ in range(60)] + [(1, 3, heavy) for _ in range(60)])
    assert Counter(tenant for _, tenant in order[:60])["heavy"] == pytest.approx(50, abs=6)
