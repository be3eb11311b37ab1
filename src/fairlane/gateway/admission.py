"""The scheduler on an event loop: who asks for a place is told when it has one, or that it gets none.

All state of the scheduler is read and written inside one callback, so it needs no lock. A holder is told of exactly one
decision at a time (`start` or `shed`), and `leave` frees whatever it has: it counts once, and may come at any moment, also
between the scheduler's decision and the holder's being told of it.
"""

import asyncio
import random
import time
from typing import Protocol

from fairlane.core.request import Decision, Request, Start
from fairlane.core.scheduler import Scheduler
from fairlane.core.values import Outcome, State, Usage
from fairlane.errors import Reason, Refused
from fairlane.policies.yielding import Yielding

CLOCK_S = 0.001  # a loop's timers count milliseconds and must not fire early


class Holder(Protocol):
    """Who asked for a place. None of its methods may raise: what comes after it in the same round would be lost."""

    request: Request

    def start(self, engine: str, now: float) -> None:
        """The place is there, on this engine, until `settle` or `leave`."""

    def shed(self, refused: Refused) -> None:
        """There will be no place."""

    def cut(self) -> None:
        """There is no time left."""

    def made(self, now: float) -> int | None:
        """Output tokens that the engine has made for it at most; None where it cannot be stopped without its client noticing."""

    def give_way(self, tokens: int) -> None:
        """The place goes to a more urgent request, and so many tokens were made in vain: stop, and ask `again`."""


class Admission:
    """Feeds the scheduler, carries out its decisions, and arms the one timer that it asks for."""

    def __init__(self, scheduler: Scheduler, loop: asyncio.AbstractEventLoop, *, yield_waste: float = 0.0) -> None:
        self.scheduler = scheduler
        self.yieldings = {name: Yielding(pool, yield_waste) for name, pool in scheduler.pools.items()} if yield_waste else {}
        self.time = time.monotonic  # a loop's own clock may stand still while it is busy
        self.holders: dict[int, Holder] = {}
        self.draining = False
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = 0.0
        self._pumping = False
        self._again = False

    def enter(self, holder: Holder, now: float) -> None:
        """Asks for a place. The holder may be told the decision before this returns."""
        request = holder.request
        self.holders[request.id] = holder
        try:
            self.scheduler.submit(request, now)
        except BaseException:
            del self.holders[request.id]
            raise
        self.pump(now)

    def again(self, holder: Holder) -> None:
        """The engine was never reached, or was full: asks once more, in the old place."""
        request = holder.request
        self.scheduler.requeue(request)
        if self.yieldings:
            self.yieldings[request.pool].waits(request)
        self.pump(self.time())

    def progress(self, request: Request, produced: int) -> None:
        """A running request has produced so many output tokens: its charge grows with it, and room may have come free."""
        now = self.time()
        self.scheduler.progress(request, produced, now)
        self.pump(now)

    def settle(self, request: Request, usage: Usage | None, outcome: Outcome, now: float) -> None:
        """The engine is done with the request: its place is free, its cost is `usage` (None: nothing). Counts once."""
        self.scheduler.settle(request, usage, outcome, now)
        if self.yieldings:
            self.yieldings[request.pool].over(request, usage.tokens if usage is not None else 0)
        self.pump(now)

    def leave(self, request: Request, outcome: Outcome) -> None:
        """The client has its last byte, or nobody wants the request any more: frees what is not freed yet. Counts once."""
        if self.holders.pop(request.id, None) is None:
            return
        scheduler, state = self.scheduler, request.state
        if self.yieldings:
            self.yieldings[request.pool].over(request)
        if state is State.WAITING:
            scheduler.cancel(request, self.time())
        elif state is State.RUNNING:
            scheduler.settle(request, None, outcome, self.time())
        if scheduler.depart(request) or state is not State.ENDED:
            self.pump(self.time())

    def evict_all(self, reason: Reason) -> None:
        """Sheds everything that waits."""
        now = self.time()
        self.scheduler.evict_all(reason, now)
        self.pump(now)

    def cut_all(self) -> None:
        """Ends everything that runs, too."""
        self.evict_all(Reason.DRAINING)
        for holder in [*self.holders.values()]:
            holder.cut()

    def pump(self, now: float) -> None:
        """Carries out all decisions that are due, and sleeps until the next. What a decision leads to is part of the same round."""
        if self._pumping:
            self._again = True
            return
        self._pumping = True
        try:
            self._again = True
            while self._again:
                self._again = False
                for decision in self.scheduler.poll(now):
                    self._carry_out(decision, now)
                if self.yieldings and not self.draining:
                    self._ask_to_yield(now)
                now = self.time() if self._again else now
        finally:
            self._pumping = False
        wake = self.scheduler.wake_at()
        if wake is not None:
            self._sleep(wake, now)

    def _carry_out(self, decision: Decision, now: float) -> None:
        holder = self.holders.get(decision.request.id)
        if holder is None:
            return  # it left in this very round
        if isinstance(decision, Start):
            if self.yieldings:
                self.yieldings[decision.request.pool].started(decision.request)
            holder.start(decision.engine, now)
            return
        wait = decision.retry_after_s
        if wait is not None:
            wait += random.uniform(0.0, decision.jitter_s)  # noqa: S311 - spreads returning clients, no secret
        holder.shed(Refused(decision.reason, retry_after_s=wait))

    def _ask_to_yield(self, now: float) -> None:
        """Has a request of the last class give way in each pool where a more urgent one needs its place, which leads to another round."""
        for yielding in self.yieldings.values():
            chosen = yielding.choose(self._made, now)
            if chosen is not None:
                self.holders[chosen.request.id].give_way(chosen.tokens)

    def _made(self, request: Request, now: float) -> int | None:
        return self.holders[request.id].made(now)

    def _sleep(self, wake: float, now: float) -> None:
        if self._timer is not None:
            if wake >= self._wakes_at:
                return
            self._timer.cancel()
        self._wakes_at = wake
        self._timer = self._loop.call_later(wake - now + CLOCK_S, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.pump(self.time())
