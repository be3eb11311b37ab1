"""The engines of a pool: which of them takes a request, and the hold that lets large requests in.

The engine is chosen at dispatch, not at arrival (late binding): the least loaded of those that the request fits.

A head that fits nowhere while smaller requests pass it would wait for ever. After a bounded cost has passed, its class
*holds* one engine: nothing else starts there until the class's head does. One hold at a time in a pool, an owed class
first, so the other engines go on serving.
"""

from collections.abc import Callable, Iterable

from fairlane.core.protocols import Limit
from fairlane.core.values import Engine, Request, State


class EngineState:
    """One engine as the scheduler sees it."""

    __slots__ = ("leaving", "limit", "spec", "up")

    def __init__(self, spec: Engine, limit: Limit) -> None:
        self.spec = spec
        self.limit = limit
        self.up = False
        self.leaving = False  # no longer configured: runs down and is dropped

    @property
    def open(self) -> bool:
        """Whether it may be given work."""
        return self.up and not self.leaving


class Places:
    """All engines of one pool."""

    def __init__(self, engines: Iterable[Engine], make_limit: Callable[[Engine], Limit]) -> None:
        self._make_limit = make_limit
        self.engines: dict[str, EngineState] = {}
        self.running = 0
        self.held: EngineState | None = None
        self.held_for: int | None = None  # rank
        self._held_by: Request | None = None
        self.context: int | None = None  # of the largest engine that is open, or None where one is unknown
        self.reconfigure(engines)

    def reconfigure(self, engines: Iterable[Engine]) -> None:
        """Takes a new set of engines. One that is gone runs down; one that comes back meanwhile keeps its count."""
        wanted = {e.name: e for e in engines}
        for name, state in list(self.engines.items()):
            state.leaving = name not in wanted
            self._drop_if_done(state)
        for name, spec in wanted.items():
            if name not in self.engines:
                self.engines[name] = EngineState(spec, self._make_limit(spec))
            self.engines[name].spec = spec
            self.engines[name].limit.reconfigure(spec)
        self._note_context()

    def report(self, engine: str, *, up: bool, spec: Engine | None) -> None:
        """An engine came or went, or told its size; one that is not known is none of ours."""
        state = self.engines.get(engine)
        if state is None:
            return
        state.up = up
        if spec is not None:
            state.spec = spec
            state.limit.reconfigure(spec)
        self._note_context()
        if state is self.held and not state.open:
            self.release_hold()

    @property
    def any_open(self) -> bool:
        """Whether any engine may be given work."""
        return any(e.open for e in self.engines.values())

    @property
    def prefilling(self) -> int:
        """Prompt tokens to be prefilled on the engine that has the least."""
        return min((e.limit.prefilling for e in self.engines.values() if e.open), default=0)

    def choose(self, request: Request) -> EngineState | None:
        """The least loaded engine that the request fits and no hold keeps from it."""
        best: EngineState | None = None
        best_load = 0.0
        for engine in self.engines.values():
            if not engine.open or (engine is self.held and self.held_for != request.rank):
                continue
            if not engine.limit.fits(request) or not self._suits(engine, request):
                continue
            load = engine.limit.load()
            if best is None or load < best_load:
                best, best_load = engine, load
        return best

    def take(self, request: Request, engine: EngineState) -> None:
        """The request runs there now; a hold of its class is fulfilled."""
        request.engine = engine
        engine.limit.take(request)
        self.running += 1
        if self.held_for == request.rank:
            self.release_hold()

    def release(self, request: Request) -> None:
        """The request's place is free again: on the very engine that it was taken from."""
        engine = request.engine
        engine.limit.release(request)
        self.running -= 1
        self._drop_if_done(engine)

    def hold(self, request: Request) -> None:
        """Reserves the engine that is nearest to having room for the request."""
        fitting = [e for e in self.engines.values() if e.open and self._suits(e, request)]
        if fitting:
            self.held = min(fitting, key=lambda e: e.limit.load())
            self.held_for = request.rank
            self._held_by = request

    def review_hold(self, heads: Iterable[Request]) -> None:
        """Ends a hold whose request waits no more, or whose class has no head that the engine suits."""
        if self.held is None:
            return
        waits = self._held_by is not None and self._held_by.state is State.WAITING
        if not waits or not any(r.rank == self.held_for and self._suits(self.held, r) for r in heads):
            self.release_hold()

    def release_hold(self) -> None:
        """Lets every request onto the held engine again."""
        self.held = self.held_for = self._held_by = None

    def _suits(self, engine: EngineState, request: Request) -> bool:
        context = engine.spec.context
        return context is None or context >= min(request.max_tokens, self.context or request.max_tokens)

    def _note_context(self) -> None:
        contexts = [e.spec.context for e in self.engines.values() if e.open]
        self.context = None if None in contexts else max((c for c in contexts if c is not None), default=None)

    def _drop_if_done(self, engine: EngineState) -> None:
        if engine.leaving and engine.limit.running == 0:
            self.engines.pop(engine.spec.name, None)
        if engine is self.held and not engine.open:
            self.release_hold()
