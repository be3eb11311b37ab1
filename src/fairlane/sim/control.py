"""The adaptive limits of simulated engines, as the gateway drives those of real ones."""

from __future__ import annotations

from collections.abc import Sequence

from fairlane.core.scheduler import Scheduler
from fairlane.policies.limits.adaptive import AdaptiveLimit
from fairlane.policies.limits.signals import Signals
from fairlane.sim.engine.batching import SimulatedEngine

TICK_S = 1.0


class Controlled:
    """One engine and its controller."""

    def __init__(self, scheduler: Scheduler, pool: str, name: str, engine: SimulatedEngine) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self._name = name
        self._engine = engine
        self.limit = AdaptiveLimit(scheduler.pools[pool].places.engines[name].spec, 0.0)

    def tick(self, now: float) -> None:
        """Tells the controller how the engine is, and the scheduler what follows; not while the engine is away."""
        engine, pool = self._engine, self._scheduler.pools[self._pool]
        state = pool.places.engines.get(self._name)
        if state is None:
            return
        signals = Signals(
            state.limit.running,
            engine.decoded_tokens,
            running_there=engine.running,
            waiting=engine.waiting,
            preemptions=engine.preemptions,
            backlog=pool.queued,
        )
        spec = self.limit.tick(signals, now)
        if spec is not None:
            self._scheduler.engine_report(self._pool, self._name, up=state.up, spec=spec)


def controllers(scheduler: Scheduler, pool: str, engines: Sequence[SimulatedEngine]) -> list[Controlled]:
    """One for each engine of the pool, in their order."""
    return [Controlled(scheduler, pool, name, engine) for name, engine in zip(scheduler.pools[pool].places.engines, engines, strict=True)]
