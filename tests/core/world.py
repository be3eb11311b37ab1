"""Builders for tests of the core: a scheduler over a few engines, and a world that runs it in virtual time."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from fairlane import plugins
from fairlane.core.request import Request, Shed, Start
from fairlane.core.scheduler import Scheduler
from fairlane.core.values import Engine, Outcome, PoolSpec, PriorityClass, Tenant, Usage
from fairlane.policies.placement.soonest import Soonest

FOUR = (
    PriorityClass("realtime", 0, 3000, max_queued=100_000, max_wait_s=1e6, short_first_s=1.0),
    PriorityClass("paid", 1, 1500, max_queued=100_000, max_wait_s=1e6, short_first_s=3.0),
    PriorityClass("free", 2, 1000, max_queued=100_000, max_wait_s=1e6, short_first_s=10.0),
    PriorityClass("batch", 3, 1000, max_queued=100_000, max_wait_s=1e6, short_first_s=600.0),
)


def make(
    engines: tuple[Engine, ...], classes: tuple[PriorityClass, ...] = FOUR, *, max_queued: int = 10**6, policy: str = "gmp"
) -> Scheduler:
    """A scheduler with one pool `main` whose engines are up."""
    spec = PoolSpec("main", classes, engines, policy)
    scheduler = Scheduler(
        [spec],
        lambda p: plugins.policy(p.policy, p.classes),
        plugins.engine_limit,
        0.0,
        make_placement=plugins.placement,
        max_queued=max_queued,
    )
    for engine in engines:
        scheduler.engine_report("main", engine.name, up=True)
    return scheduler


def placement(scheduler: Scheduler) -> Soonest:
    """What chooses the engines of the pool `main`."""
    found = scheduler.pools["main"].placement
    assert isinstance(found, Soonest)
    return found


_ids = count(1)


def request(tenant: Tenant, rank: int, now: float = 0.0, *, prompt: int = 100, output: int = 25) -> Request:
    """A new request of the pool `main`, by default of cost 200."""
    return Request(next(_ids), tenant, "main", rank, "m", prompt, output, prompt + output, prompt, prompt + output, now, output)


@dataclass
class Size:
    """True and predicted sizes of a request: the cost that counts and the one that is charged first."""

    prompt: int
    output: int
    predicted: int


class World:
    """Engines that serve at one token unit a time step each, so that costs are what takes time. Deterministic by seed."""

    def __init__(self, scheduler: Scheduler, seed: int) -> None:
        self.scheduler = scheduler
        self.random = random.Random(seed)
        self.now = 0.0
        self.served: Counter[tuple[int, str]] = Counter()  # true cost of what ended
        self.dispatched: Counter[tuple[int, str]] = Counter()  # true cost of what started
        self.started: list[tuple[int, str]] = []
        self.shed: list[Shed] = []
        self.sizes: dict[int, Size] = {}
        self._ends: list[tuple[float, int, Request]] = []

    def submit(self, tenant: Tenant, rank: int, size: Size) -> Request:
        """Feeds one request and carries out what follows."""
        r = request(tenant, rank, self.now, prompt=size.prompt, output=size.predicted)
        self.sizes[r.id] = size
        self.scheduler.submit(r, self.now)
        self.pump()
        return r

    def pump(self) -> None:
        """Carries out all decisions."""
        for decision in self.scheduler.poll(self.now):
            if isinstance(decision, Start):
                r = decision.request
                self.started.append((r.rank, r.tenant.name))
                size = self.sizes[r.id]
                self.dispatched[r.rank, r.tenant.name] += size.prompt + 4 * size.output
                took = (size.prompt + 4 * size.output) * self.random.uniform(0.5, 1.5)
                heappush(self._ends, (self.now + took, r.id, r))
            else:
                self.shed.append(decision)

    def step(self) -> Request:
        """Lets the next running request end."""
        self.now, _, r = heappop(self._ends)
        size = self.sizes.pop(r.id)
        self.scheduler.settle(r, Usage(size.prompt, size.output), Outcome.COMPLETED, self.now)
        self.scheduler.depart(r)
        self.served[r.rank, r.tenant.name] += size.prompt + 4 * size.output
        self.pump()
        return r
