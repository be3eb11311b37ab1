"""The scheduler on an event loop: `async with admission.admit(request) as lease` waits, runs, and frees exactly once.

All state of the scheduler is read and written between two awaits, so it needs no lock. Whatever ends the block (an answer,
an error, a cancellation at any moment, also between the decision to start and the waiting task's next step) the place is
freed and the request is settled once.
"""

import asyncio
import random
import time
from types import TracebackType
from typing import Self

from fairlane.core.scheduler import Scheduler
from fairlane.core.values import Outcome, Request, Shed, Start, State, Usage
from fairlane.errors import Reason, Refused

CLOCK_S = 0.001  # a loop's timers count milliseconds and must not fire early


class Lease:
    """One request's place on an engine, from admission to the client's last byte."""

    __slots__ = ("_admission", "_refused", "_waiter", "engine", "request", "started_at")

    def __init__(self, admission: "Admission", request: Request) -> None:
        self._admission = admission
        self._waiter: asyncio.Future[None] | None = None
        self._refused: Refused | None = None
        self.request = request
        self.engine = ""
        self.started_at = 0.0

    async def __aenter__(self) -> Self:
        """Waits for the place; raises `Refused` when the request is shed."""
        admission = self._admission
        if admission.draining:
            raise Refused(Reason.DRAINING, retry_after_s=1.0)
        admission.leases[self.request.id] = self
        try:
            admission.scheduler.submit(self.request, admission.time())
            admission.pump()
            await self._wait()
        except BaseException:
            self._close(Outcome.CANCELLED)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Frees what is not freed yet."""
        self._close(Outcome.FAILED if kind is not asyncio.CancelledError else Outcome.CANCELLED)

    def settle(self, usage: Usage | None, outcome: Outcome) -> None:
        """The engine is done with the request: its place is free, its cost is `usage` (None: nothing). Counts once."""
        admission = self._admission
        admission.scheduler.settle(self.request, usage, outcome, admission.time())
        admission.pump()

    async def again(self) -> None:
        """The engine was never reached: waits once more, in the old place."""
        admission = self._admission
        admission.scheduler.requeue(self.request)
        admission.pump()
        await self._wait()

    def decide(self, decision: Start | Shed, now: float) -> None:
        """Takes the scheduler's decision."""
        if isinstance(decision, Start):
            self.engine = decision.engine
            self.started_at = now
        else:
            wait = decision.retry_after_s
            if wait is not None:
                wait += random.uniform(0.0, decision.jitter_s)  # noqa: S311 - spreads returning clients, no secret
            self._refused = Refused(decision.reason, retry_after_s=wait)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        if self.request.state is State.WAITING:
            self._waiter = self._admission.loop.create_future()
            await self._waiter
        refused, self._refused = self._refused, None  # a kept exception would keep this frame, and with it the request's body
        try:
            if refused is not None:
                raise refused
        finally:
            del refused

    def _close(self, outcome: Outcome) -> None:
        admission = self._admission
        if admission.leases.pop(self.request.id, None) is None:
            return
        state = self.request.state
        if state is State.WAITING:
            admission.scheduler.cancel(self.request, admission.time())
        elif state is State.RUNNING:
            admission.scheduler.settle(self.request, None, outcome, admission.time())
        freed = admission.scheduler.depart(self.request)
        if freed or state is not State.ENDED:
            admission.pump()


class Admission:
    """Feeds the scheduler, carries out its decisions, and arms the one timer that it asks for."""

    def __init__(self, scheduler: Scheduler, loop: asyncio.AbstractEventLoop) -> None:
        self.scheduler = scheduler
        self.loop = loop
        self.time = time.monotonic  # a loop's own clock may stand still while it is busy
        self.leases: dict[int, Lease] = {}
        self.draining = False
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = 0.0

    def admit(self, request: Request) -> Lease:
        """The lease to be entered with `async with`."""
        return Lease(self, request)

    def progress(self, request: Request, produced: int) -> None:
        """A running request has produced so many output tokens: its charge grows with it, and room may have come free."""
        self.scheduler.progress(request, produced, self.time())
        self.pump()

    def pump(self) -> None:
        """Carries out all decisions that are due, and sleeps until the next."""
        now = self.time()
        for decision in self.scheduler.poll(now):
            self.leases[decision.request.id].decide(decision, now)
        wake = self.scheduler.wake_at()
        if wake is not None and (self._timer is None or wake < self._wakes_at):
            if self._timer is not None:
                self._timer.cancel()
            self._wakes_at = wake
            self._timer = self.loop.call_later(wake - now + CLOCK_S, self._wake)

    def evict_all(self, reason: Reason) -> None:
        """Sheds everything that waits."""
        self.scheduler.evict_all(reason, self.time())
        self.pump()

    def _wake(self) -> None:
        self._timer = None
        self.pump()
