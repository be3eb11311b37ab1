"""The swarm with requests that give way: after each event, as long as somebody can, with all checks of the swarm in between."""

from __future__ import annotations

from random import Random

from fairlane.policies.yielding import Yielding
from tests.swarm.checks import held
from tests.swarm.run import STEPS, Run


class Giving(Run):
    """A run in which the last class of a pool gives way now and then."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.moods = Random(f"yields {seed}")
        self.gave = 0

    def step(self) -> None:
        """One random event, and now and then a request that gives way after it."""
        super().step()
        if self.moods.random() < 0.5:
            for name in self.scheduler.pools:
                self.give(name)

    def give(self, name: str) -> None:
        """The newest that has shown nothing gives way, if it may; then a more urgent one starts at once."""
        pool = self.scheduler.pools[name]
        yielding = Yielding(pool, 0.5)
        for job in sorted(self.model.running.values(), key=lambda j: j.moment):
            if job.request.pool == name and not job.produced:
                yielding.started(job.request)
        chosen = yielding.choose(lambda r, _: 0 if r.output_tokens else None, self.now)
        if chosen is None:
            return
        self.gave += 1
        self.event = "bounce"
        job = self.model.running[chosen.request.id]
        self.scheduler.requeue(job.request)
        self.model.requeue(job)
        starts = self.model.starts
        self._poll()
        took = [j for j in self.model.running.values() if j.moment > starts and j.request.rank < job.request.rank]
        held(bool(took), "yield: for nothing", chosen.request.id)


def test_a_swarm_that_gives_way_keeps_all_invariants() -> None:
    """Under random events with the policies that know yields, and it ends with everything at zero. In most runs somebody can give way."""
    gave = []
    for seed in range(6):
        run = Giving(seed)
        for _ in range(STEPS):
            run.step()
        run.drain()
        gave.append(run.gave > 0)
    assert sum(gave) > len(gave) / 2
