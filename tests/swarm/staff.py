"""The engines of the swarm as they come and go: some that are lost are no longer configured until they are back."""

from __future__ import annotations

from random import Random

from fairlane.core.scheduler import Scheduler
from fairlane.core.values import Engine
from tests.swarm.model import Model, Site

LEAVES = 0.5  # of those that are lost


class Staff:
    """Tells the scheduler of engines. It draws by itself, so that a run is what it would be if none ever left."""

    def __init__(self, seed: int, scheduler: Scheduler, model: Model) -> None:
        self._random = Random(f"staff {seed}")
        self._scheduler = scheduler
        self._model = model
        self._left: set[str] = set()

    def report(self, site: Site, *, up: bool, spec: Engine) -> None:
        """An engine is up or not, with these numbers."""
        site.up, site.spec = up, spec
        if up and spec.name in self._left:
            self._left.remove(spec.name)
            self._configure(site.pool)
        elif not up and spec.name not in self._left and self._random.random() < LEAVES:
            self._left.add(spec.name)
            self._configure(site.pool)
        self._scheduler.engine_report(site.pool, spec.name, up=up, spec=spec)

    def _configure(self, pool: str) -> None:
        engines = [s.spec for s in self._model.sites.values() if s.pool == pool and s.spec.name not in self._left]
        self._scheduler.reconfigure(pool, [queue.spec for queue in self._scheduler.pools[pool].queues], engines)
