"""Room for urgent requests: found by how late they start, given back when they stay away, and never taken from a guarantee."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from fairlane.core.request import Request, Start
from fairlane.core.scheduler import Scheduler
from fairlane.core.values import Engine, Outcome, Tenant, Usage
from fairlane.policies.headroom import GIVEN_BACK, STEP, TARGET, Headroom
from fairlane.sim.engine.model import EngineModel
from fairlane.sim.load.workload import Mix, TenantLoad
from fairlane.sim.runs import figures
from fairlane.sim.setup import Setup
from tests.core.world import FOUR, make, request

SLO_S = 1.0
CLASSES = (replace(FOUR[0], ttft_slo_s=SLO_S, min_share=0), *(replace(c, min_share=0) for c in FOUR[1:3]), FOUR[3])
URGENT, PAID, BATCH = Tenant("urgent"), Tenant("paid"), Tenant("batch")


def order_of(scheduler: Scheduler) -> Headroom:
    """The order of the one pool's classes."""
    order = scheduler.pools["main"].order
    assert isinstance(order, Headroom)
    return order


class Play:
    """A scheduler with so many places, and what runs there."""

    def __init__(self, slots: int = 4) -> None:
        self.scheduler = make((Engine("e", slots),), CLASSES)
        self.order = order_of(self.scheduler)
        self.running: list[Request] = []

    def come(self, tenant: Tenant, rank: int, now: float, *, arrived_at: float | None = None) -> Request:
        """A request arrives, perhaps some time ago; what starts runs."""
        r = request(tenant, rank, now if arrived_at is None else arrived_at)
        self.scheduler.submit(r, now)
        self.poll(now)
        return r

    def poll(self, now: float) -> None:
        """What starts runs."""
        self.running += [d.request for d in self.scheduler.poll(now) if isinstance(d, Start)]

    def end(self, r: Request, now: float) -> None:
        """A request ends; what starts in its place runs."""
        self.running.remove(r)
        self.scheduler.settle(r, Usage(r.prompt_tokens, r.output_tokens), Outcome.COMPLETED, now)
        self.scheduler.depart(r)
        self.poll(now)


def test_late_starts_lower_the_cap_and_others_raise_it() -> None:
    """By a step, by two where almost all of the time is gone, and by a tenth of one; until it is where it began."""
    play = Play()
    for _ in range(3):
        play.come(PAID, 1, 0.0)
    play.come(URGENT, 0, 0.0)
    assert play.order.cap == inf
    for waited_s, cap in ((0.75, 3 - STEP), (0.9, 3 - 3 * STEP), (0.1, 3 - 3 * STEP + STEP * TARGET)):
        play.end(play.running[-1], 10.0)
        play.come(URGENT, 0, 10.0, arrived_at=10.0 - waited_s)
        assert play.order.cap == pytest.approx(cap)
    for _ in range(40):
        play.end(play.running[-1], 10.0)
        play.come(URGENT, 0, 10.0)
    assert play.order.cap == inf


def test_what_was_late_though_a_place_was_free_says_nothing_of_places() -> None:
    """Fewer run than of late, so it had to wait for something else."""
    play = Play()
    for _ in range(4):
        play.come(PAID, 1, 0.0)
    for r in play.running[:2]:
        play.end(r, 1.0)
    play.come(URGENT, 0, 10.0, arrived_at=9.1)
    assert play.order.cap == inf


def test_a_cap_keeps_room_from_what_is_not_owed() -> None:
    """A paid request waits though there is room, an urgent one and an owed one start; when nothing less urgent runs the next one does."""
    play = Play()
    first, *others = (play.come(PAID, 1, 0.0) for _ in range(3))
    for r in others:
        play.end(r, 0.0)
    play.order.cap = 1.0
    kept, owed = play.come(PAID, 1, 0.0), play.come(BATCH, 3, 0.0)
    assert play.running == [first]
    urgent = play.come(URGENT, 0, 0.0)  # what is served while it waits makes batch be owed
    assert play.running == [first, urgent, owed]
    play.end(first, 2.0)
    assert kept not in play.running
    play.end(owed, 2.0)
    assert kept in play.running


def test_room_is_given_back_when_no_urgent_request_comes() -> None:
    """After so many others, however low the cap was."""
    play = Play()
    play.order.cap = 1.5
    for number in range(int(GIVEN_BACK * 1.5) + 1):
        assert play.order.cap == 1.5, number
        play.come(PAID, 1, float(number))
        play.end(play.running[0], float(number))
    assert play.order.cap == inf


def test_a_hold_ends_when_room_is_kept_from_its_class() -> None:
    """Else the engine would be held for a head that may not start, and serve nobody."""
    play = Play(slots=2)
    play.come(PAID, 1, 0.0)
    play.come(PAID, 1, 0.0)
    waiting = play.come(PAID, 1, 0.0)
    places = play.scheduler.pools["main"].places
    places.hold(waiting)
    play.order.cap = 1.0
    play.end(play.running[0], 1.0)
    assert waiting not in play.running
    assert places.held is None
    assert play.come(URGENT, 0, 1.0) in play.running


def test_another_class_is_kept_room_for_when_the_objectives_change() -> None:
    """What runs stays counted, and the cap is found anew."""
    play = Play()
    for rank, tenant in ((1, PAID), (2, PAID), (3, BATCH)):
        play.come(tenant, rank, 0.0)
    assert play.order.below == 3
    play.order.cap = 1.0
    play.scheduler.reconfigure("main", (replace(CLASSES[0], ttft_slo_s=None), replace(CLASSES[1], ttft_slo_s=2.0), *CLASSES[2:]))
    assert (play.order.below, play.order.cap) == (2, inf)
    play.scheduler.reconfigure("main", tuple(replace(c, ttft_slo_s=None) for c in CLASSES))
    assert (play.order.below, play.order.cap) == (0, inf)
    for r in list(play.running):
        play.end(r, 1.0)
    assert play.order.below == 0


def test_urgent_requests_are_in_time_where_places_are_few_and_answers_long() -> None:
    """On an engine with eight places and long answers in all of them; batch keeps its share, and little of the whole is lost."""
    load = Mix(
        "places",
        (
            TenantLoad("a", 0, 3.0, 1, "azure2023_code"),
            TenantLoad("b", 1, 1.0, 1, "azure2023_conv"),
            TenantLoad("c", 3, 1.0, 1, "azure2023_conv"),
        ),
    )
    slow = EngineModel(running_max=8, step_s=0.03)
    with_it, without = (
        figures(Setup("gmp", source=load, model=slow, warmup_s=30.0, duration_s=240.0, headroom=headroom)) for headroom in (True, False)
    )
    assert (with_it.attainment[0] or 0.0) > (without.attainment[0] or 0.0) + 0.02
    assert with_it.goodput > 0.9 * without.goodput


def test_what_was_found_with_some_places_holds_in_proportion_with_more_or_fewer() -> None:
    """An engine that is found to run twice as many leaves twice as many to the others; one that is away for a while changes nothing."""
    play = Play()
    for _ in range(3):
        play.come(PAID, 1, 0.0)
    play.come(URGENT, 0, 0.0)
    play.end(play.running[-1], 10.0)
    play.come(URGENT, 0, 10.0, arrived_at=9.25)
    found = 3 - STEP
    for up, slots, cap in ((True, 8, 2 * found), (False, 8, 2 * found), (True, 8, 2 * found), (True, 4, found)):
        play.scheduler.engine_report("main", "e", up=up, spec=Engine("e", slots))
        assert play.order.cap == pytest.approx(cap)


def test_the_places_that_a_controller_finds_are_not_taken_for_room_to_keep() -> None:
    """At 1.5 times what the engine can serve, a limit that is found while serving comes to 0.95 of what the best fixed one does."""
    setup = Setup("gmp", load=1.5, duration_s=120.0)
    found, fixed = (figures(replace(setup, **how)).goodput for how in ({"adaptive": True}, {"slots": 256}))
    assert found > 0.95 * fixed
