"""Admission on an event loop: whatever is cancelled, whenever, nothing is lost and nothing is freed twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from fairlane.core.request import Request
from fairlane.core.values import Engine, Outcome, PriorityClass, Tenant, Usage
from fairlane.errors import Reason, Refused
from fairlane.gateway.admission import Admission
from tests.core.world import make, request

CLASSES = (PriorityClass("only", 0, max_queued=100, max_wait_s=30.0, retry_after_min_s=2.0),)
TENANT = Tenant("t", max_running=3)


class Lease:
    """A holder that a coroutine can wait for: `begin` returns when the place is there, and raises what it is refused with."""

    def __init__(self, front: Admission, made: Request) -> None:
        self.front = front
        self.request = made
        self._decision: asyncio.Future[Refused | None] = asyncio.get_running_loop().create_future()

    def start(self, engine: str, now: float) -> None:
        """The place is there."""
        assert engine == "e"
        assert now <= self.front.time()
        self._decide(None)

    def shed(self, refused: Refused) -> None:
        """There will be no place."""
        self._decide(refused)

    def cut(self) -> None:
        """There is no time left."""

    def made(self, now: float) -> int | None:  # noqa: ARG002 - it is not known
        """It is let run."""
        return None

    def give_way(self, tokens: int) -> None:
        """It is never asked to."""

    async def begin(self) -> None:
        """Ask and wait."""
        self.front.enter(self, self.front.time())
        await self._decided()

    async def again(self) -> None:
        """The engine was not reached."""
        self._decision = asyncio.get_running_loop().create_future()
        self.front.again(self)
        await self._decided()

    def settle(self) -> None:
        """The engine's last byte came."""
        self.front.settle(self.request, Usage(100, 20), Outcome.COMPLETED, self.front.time())

    @property
    def told(self) -> bool:
        """Whether a decision has come."""
        return self._decision.done()

    async def _decided(self) -> None:
        refused = await self._decision
        if refused is not None:
            raise refused

    def _decide(self, refused: Refused | None) -> None:
        if not self._decision.cancelled():
            self._decision.set_result(refused)  # a second decision raises here


def run(work: Coroutine[Any, Any, None]) -> None:
    """Runs a test's coroutine on the loop that production uses."""
    uvloop.run(work)


def admission(slots: int = 1, classes: tuple[PriorityClass, ...] = CLASSES) -> Admission:
    """An admission over one engine."""
    return Admission(make((Engine("e", slots),), classes), asyncio.get_running_loop())


def assert_idle(front: Admission) -> None:
    """Every counter is back at zero."""
    pool = front.scheduler.pools["main"]
    assert front.holders == {}
    assert (pool.queued, pool.places.running) == (0, 0)
    assert all(t.running == t.queued == 0 for t in front.scheduler.tenants.values())


async def steps(count: int) -> None:
    """Lets the loop go round so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def use(front: Admission, work: Callable[[Lease], Awaitable[None]]) -> None:
    """One request from arrival to its end."""
    lease = Lease(front, request(TENANT, 0, front.time()))
    try:
        await lease.begin()
        await work(lease)
    finally:
        front.leave(lease.request, Outcome.CANCELLED)
        front.leave(lease.request, Outcome.CANCELLED)  # once more changes nothing


async def answer(lease: Lease) -> None:
    """An engine's answer in three pieces, settled before the client has the last one."""
    await steps(3)
    lease.settle()
    await steps(2)


async def bounce(lease: Lease) -> None:
    """The engine was not reached the first time."""
    await steps(1)
    await lease.again()
    await answer(lease)


@pytest.mark.parametrize("work", [answer, bounce])
@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("moment", range(24))
def test_cancellation_at_every_step_leaves_nothing(moment: int, victim: int, work: Callable[[Lease], Awaitable[None]]) -> None:
    """Of three requests for one slot, one is cancelled after each possible number of steps; the others are served."""

    async def scenario() -> None:
        front = admission()
        tasks = [asyncio.create_task(use(front, work)) for _ in range(3)]
        await steps(moment)
        tasks[victim].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(r is None for i, r in enumerate(results) if i != victim)
        assert_idle(front)

    run(scenario())


def test_release_and_cancel_in_the_same_tick_lose_no_place() -> None:
    """The holder ends and the waiter is cancelled in one tick, in random order; the next is admitted at once (FC-05)."""

    async def scenario() -> None:
        front = admission()
        dice = random.Random(5)
        for _ in range(500):
            release = asyncio.Event()

            async def hold(_: Lease, release: asyncio.Event = release) -> None:
                await release.wait()

            holder = asyncio.create_task(use(front, hold))
            await steps(2)
            waiter = asyncio.create_task(use(front, answer))
            await steps(dice.randint(1, 3))
            actions: list[Callable[[], object]] = [release.set, waiter.cancel]
            dice.shuffle(actions)
            for act in actions:
                act()
            await steps(dice.randint(0, 2))
            await asyncio.wait_for(use(front, answer), 1)
            await asyncio.gather(holder, waiter, return_exceptions=True)
            assert_idle(front)

    run(scenario())


def test_waiters_are_served_in_order_after_cancellations() -> None:
    """Cancelling some of the waiting requests keeps the order of the others."""

    async def scenario() -> None:
        front = admission()
        order: list[int] = []

        async def note(number: int) -> None:
            async def work(lease: Lease) -> None:
                order.append(number)
                await answer(lease)

            await use(front, work)

        tasks = [asyncio.create_task(note(number)) for number in range(12)]
        await steps(2)
        for number in (1, 4, 11):
            tasks[number].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == [0, 2, 3, 5, 6, 7, 8, 9, 10]
        assert_idle(front)

    run(scenario())


def test_the_wait_ends_at_its_limit_without_any_other_event() -> None:
    """A request that waited `max_wait_s` is refused by the timer alone, with a time to come back."""

    async def scenario() -> None:
        front = admission(classes=(PriorityClass("only", 0, max_wait_s=0.02, retry_after_min_s=2.0),))
        release = asyncio.Event()

        async def hold(_: Lease) -> None:
            await release.wait()

        holder = asyncio.create_task(use(front, hold))
        await steps(2)
        with pytest.raises(Refused) as refused:
            await asyncio.wait_for(use(front, answer), 5)
        assert refused.value.reason is Reason.WAIT_EXPIRED
        assert refused.value.retry_after_s is not None
        assert 2.0 <= refused.value.retry_after_s <= 4.0
        release.set()
        await holder
        assert_idle(front)

    run(scenario())


def test_place_is_free_with_the_engines_last_byte_and_the_tenants_with_the_clients() -> None:
    """After `settle` another tenant may use the slot, but a tenant at its `max_running` waits until the client has all."""

    async def scenario() -> None:
        front = admission(slots=5)
        read = asyncio.Event()

        async def slow_reader(lease: Lease) -> None:
            lease.settle()
            await read.wait()

        readers = [asyncio.create_task(use(front, slow_reader)) for _ in range(3)]
        await steps(3)
        assert front.scheduler.pools["main"].places.running == 0
        waiting = asyncio.create_task(use(front, answer))
        await steps(5)
        assert not waiting.done()
        read.set()
        await asyncio.gather(waiting, *readers)
        assert_idle(front)

    run(scenario())


def test_evicting_all_sheds_what_waits_and_no_more() -> None:
    """What runs goes on; what waits is told, once."""

    async def scenario() -> None:
        front = admission()
        release = asyncio.Event()

        async def hold(_: Lease) -> None:
            await release.wait()

        holder = asyncio.create_task(use(front, hold))
        await steps(2)
        late = [asyncio.create_task(use(front, hold)) for _ in range(3)]
        await steps(2)
        front.evict_all(Reason.DRAINING)
        for task in late:
            with pytest.raises(Refused) as refused:
                await task
            assert refused.value.reason is Reason.DRAINING
        assert not holder.done()
        release.set()
        await holder
        assert_idle(front)

    run(scenario())


class Failing(Lease):
    """Fails at once whenever it is started, as at an engine whose connection is closed already."""

    def __init__(self, front: Admission, made: Request, order: list[int]) -> None:
        super().__init__(front, made)
        self._order = order

    def start(self, engine: str, now: float) -> None:  # noqa: ARG002
        """Frees the place, from inside of the round that gave it."""
        self._order.append(self.request.id)
        self.front.settle(self.request, None, Outcome.FAILED, now)
        self.front.leave(self.request, Outcome.FAILED)


def test_a_long_backlog_whose_starts_all_fail_at_once_needs_no_deep_stack() -> None:
    """Each failure frees the place for the next, thousands of times, without recursion and in order."""

    async def scenario() -> None:
        front = admission(classes=(PriorityClass("only", 0, max_queued=5000, max_wait_s=30.0),))
        tenant = Tenant("other")
        first = Lease(front, request(tenant, 0, front.time()))
        front.enter(first, front.time())
        order: list[int] = []
        others = [Failing(front, request(tenant, 0, front.time()), order) for _ in range(3000)]
        for other in others:
            front.enter(other, front.time())
        assert order == []
        first.settle()
        front.leave(first.request, Outcome.COMPLETED)
        assert order == [other.request.id for other in others]
        assert_idle(front)

    run(scenario())


def test_who_leaves_in_the_round_that_starts_it_is_not_started() -> None:
    """Two start in one round; the first takes the second with it, whose place is free again."""

    async def scenario() -> None:
        front = admission(slots=1)
        tenant = Tenant("other")

        class Taking(Lease):
            def start(self, engine: str, now: float) -> None:
                super().start(engine, now)
                self.front.leave(second.request, Outcome.CANCELLED)

        blocker = Lease(front, request(tenant, 0, front.time()))
        first = Taking(front, request(tenant, 0, front.time()))
        second = Lease(front, request(tenant, 0, front.time()))
        front.enter(blocker, front.time())
        front.enter(first, front.time())
        front.enter(second, front.time())
        front.scheduler.engine_report("main", "e", up=True, spec=Engine("e", 3))
        front.pump(front.time())
        assert first.told
        assert not second.told
        front.leave(first.request, Outcome.CANCELLED)
        front.leave(blocker.request, Outcome.CANCELLED)
        assert_idle(front)

    run(scenario())
