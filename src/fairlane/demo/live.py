"""The engine model driven by a clock: requests come and leave when they do, and each step ends at its time.

A late timer shifts nothing: what is due is carried out step by step at the model's own times, however late that is noticed.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import NamedTuple, Protocol

from fairlane.sim.engine.batching import SimulatedEngine
from fairlane.sim.engine.jobs import Event, Job, What
from fairlane.sim.engine.model import EngineModel


class Timer(Protocol):
    """A call that is still to come."""

    def cancel(self) -> object:
        """Lets it not come."""


class Clock(Protocol):
    """What the engine needs of an event loop."""

    def time(self) -> float:
        """Seconds that never run backwards."""

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer:
        """Calls back when it is so late."""


class Run:
    """One request at the engine, as whoever answers it sees it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.tokens = 0
        self.over = False  # it has ended or left: there will be no more
        self._known = 0
        self._news = asyncio.Event()

    async def more(self, known: int) -> int:
        """Waits until there are more tokens than that, or it is over; returns how many there are. For one waiter."""
        self._known = known
        while self.tokens <= known and not self.over:
            self._news.clear()
            await self._news.wait()
        return self.tokens

    def tell(self, tokens: int, *, over: bool = False) -> None:
        """Wakes who waits for so many tokens, or for the end."""
        self.tokens = tokens
        self.over = over
        if over or tokens > self._known:
            self._news.set()


class Load(NamedTuple):
    """What the engine has to do just now, and what it had to do again."""

    running: int
    waiting: int
    kv_used_ratio: float
    preemptions: int


class LiveEngine:
    """A simulated engine on a clock, `speed` times as fast as that. Every call carries out first what is due."""

    def __init__(self, model: EngineModel, clock: Clock, speed: float = 1.0) -> None:
        self.context = model.kv_tokens // model.block_tokens * model.block_tokens  # the longest request, prompt and answer
        self._engine = SimulatedEngine(model)
        self._clock = clock
        self._speed = speed
        self._began = clock.time()
        self._now = 0.0  # the engine's time
        self._ids = count(1)
        self._timer: Timer | None = None

    def start(self, prompt_tokens: int, output_tokens: int) -> Run:
        """Puts a request into the engine; ValueError if it could never fit."""
        if prompt_tokens + output_tokens > self.context:
            raise ValueError(f"a request has at most {self.context} tokens")
        self._catch_up()
        job = Job(next(self._ids), prompt_tokens, output_tokens)
        run = job.owner = Run(job)
        self._engine.add(job, self._now)
        self._wait()
        return run

    def leave(self, run: Run) -> None:
        """Takes a request out whose client is gone; does nothing if it is over."""
        self._catch_up()
        if not run.over:
            run.tell(run.tokens, over=True)
            self._engine.abort(run.job, self._now)
        self._wait()

    def load(self) -> Load:
        """The engine's load now; a step under way counts as done when it ends."""
        self._catch_up()
        self._wait()
        engine = self._engine
        return Load(engine.running, engine.waiting, engine.kv_used / self.context, engine.preemptions)

    def _catch_up(self, until: float = 0.0) -> None:
        """Carries out every step that ends by now, or by then, one event after the other."""
        self._now = max(self._now, until, (self._clock.time() - self._began) * self._speed)
        while (at := self._engine.next_event()) is not None and at <= self._now:
            for event in self._engine.advance(at):
                self._on_event(event)

    def _on_event(self, event: Event) -> None:
        job = event.job
        run: Run = job.owner
        if run.over:
            return  # the client left while the step was under way
        run.tell(self._engine.produced(job), over=event.what is What.ENDED)
        if run.tokens < job.output_tokens:
            self._engine.watch(job, run.tokens + 1)

    def _wait(self) -> None:
        """Sets the one timer to the next event."""
        if self._timer is not None:
            self._timer.cancel()
        at = self._engine.next_event()
        self._timer = None if at is None else self._clock.call_at(self._began + at / self._speed, partial(self._wake, at))

    def _wake(self, at: float) -> None:
        self._catch_up(at)  # a clock's seconds, rounded, may be just before the event that they stand for
        self._wait()
