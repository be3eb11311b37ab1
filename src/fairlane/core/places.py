"""The engines of a pool: which of them takes a request, and the hold that lets large requests in.

The engine is chosen at dispatch, not at arrival (late binding): the placement chooses among those that the request fits.

A head that fits nowhere while smaller requests pass it would wait for ever. After a bounded cost has passed, its class
*holds* the engine that is predicted to fit it first: until then only what will have ended by then starts there. One hold at a
time in a pool, an owed class first, so the other engines go on serving.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from fairlane.core.protocols import Limit, Placement
from fairlane.core.values import WAITING, Engine

if TYPE_CHECKING:
    from fairlane.core.request import Request


class EngineState:
    """One engine as the scheduler sees it."""

    def __init__(self, spec: Engine, limit: Limit) -> None:
        self.spec = spec
        self.limit = limit
        self.up = False
        self.leaving = False  # no longer configured: runs down and is dropped
        self.prefills_since = 0.0  # when it began with the first of the prompts that have no first token


class Places:
    """All engines of one pool."""

    def __init__(self, engines: Iterable[Engine], make_limit: Callable[[Engine], Limit], placement: Placement) -> None:
        self._make_limit = make_limit
        self._placement = placement
        self.engines: dict[str, EngineState] = {}
        self.open: list[EngineState] = []
        self.slots = 0  # of all that are open
        self.running = 0  # requests
        self.held: EngineState | None = None
        self.held_by: Request | None = None
        self.context: int | None = None  # of the largest engine that is open, or None where one is unknown
        self.reconfigure(engines)

    def reconfigure(self, engines: Iterable[Engine]) -> None:
        """Takes a new set of engines. One that is gone runs down; one that stays or comes back meanwhile keeps count and numbers."""
        wanted = {e.name: e for e in engines}
        for name, state in list(self.engines.items()):
            state.leaving = name not in wanted
            self._drop_if_done(state)
        for name, spec in wanted.items():
            if name not in self.engines:
                self.engines[name] = EngineState(spec, self._make_limit(spec))
        self._note_open()

    def report(self, engine: str, *, up: bool, spec: Engine | None) -> None:
        """An engine came or went, or told its size; one that is not known is none of ours."""
        state = self.engines.get(engine)
        if state is None:
            return
        if state.up and not up:
            self._placement.forget(engine)
        state.up = up
        if spec is not None:
            state.spec = spec
            state.limit.reconfigure(spec)
        self._note_open()

    @property
    def full(self) -> bool:
        """Whether no engine has a slot for any request."""
        return not [e for e in self.open if e.limit.running < e.limit.slots]

    def choose(self, request: Request) -> EngineState | None:
        """The best of the engines that the request fits and that no hold keeps from it."""
        fitting = [e for e in self.open if e.limit.fits(request) and (e.spec.context is None or self._suits(e, request))]
        if len(fitting) > 1:
            return self._placement.choose(request, fitting)
        return fitting[0] if fitting else None

    def take(self, request: Request, engine: EngineState, now: float) -> None:
        """The request runs there now; a hold of its class is fulfilled."""
        self._placement.take(request, engine, now)
        request.engine = engine
        engine.limit.take(request)
        self.running += 1
        if self.held_by is not None and self.held_by.rank == request.rank:
            self.release_hold()

    def release(self, request: Request) -> None:
        """The request's place is free again: on the very engine that it was taken from."""
        request.engine.limit.release(request)
        self.running -= 1
        self._drop_if_done(request.engine)

    def hold(self, request: Request) -> None:
        """Reserves the engine that is predicted to have room for the request first, in place of any other."""
        suiting = (e for e in self.open if self._suits(e, request))
        engine = min(suiting, key=lambda e: (e.limit.fits_in(request), e.limit.load()), default=None)
        if engine is not None:
            self.release_hold()
            self.held, self.held_by = engine, request
            engine.limit.reserve(request)

    def review_hold(self, heads: Iterable[Request]) -> None:
        """Ends a hold whose request waits no more, whose engine is not open, or whose class has none of these heads that it suits."""
        held, by = self.held, self.held_by
        if held is None or by is None:
            return
        waits = by.state is WAITING and held in self.open
        if not waits or not any(r.rank == by.rank and self._suits(held, r) for r in heads):
            self.release_hold()

    def release_hold(self) -> None:
        """Lets every request onto the held engine again."""
        if self.held is not None:
            self.held.limit.reserve(None)
        self.held = self.held_by = None

    def _suits(self, engine: EngineState, request: Request) -> bool:
        context, largest = engine.spec.context, self.context
        return context is None or context >= request.max_tokens or (largest is not None and context >= largest)

    def _note_open(self) -> None:
        self.open = [e for e in self.engines.values() if e.up and not e.leaving]
        self.slots = sum([e.limit.slots for e in self.open])
        contexts = [e.spec.context for e in self.open]
        self.context = None if None in contexts else max((c for c in contexts if c is not None), default=None)

    def _drop_if_done(self, engine: EngineState) -> None:
        if engine.leaving and engine.limit.running == 0:
            self.engines.pop(engine.spec.name, None)
            self._placement.forget(engine.spec.name)
