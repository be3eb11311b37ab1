"""Room that is kept: which engine a scheduler holds for which request, what ran there when it began to, and caps for urgent ones."""

from __future__ import annotations

from math import inf
from random import Random

from fairlane.core.request import Request
from fairlane.core.scheduler import Scheduler
from fairlane.policies.headroom import Headroom
from tests.swarm.model import Hold, Job, Model
from tests.swarm.plan import Plan

CAPPED = 0.02  # of the steps set another cap
Held = dict[str, tuple[str, Request]]  # by pool: the engine, and for whom


def held_by(scheduler: Scheduler) -> Held:
    """The held engine of each pool that has one, and the request that it is held for."""
    held = {name: (pool.places.held, pool.places.held_by) for name, pool in scheduler.pools.items()}
    return {name: (engine.spec.name, by) for name, (engine, by) in held.items() if engine is not None and by is not None}


def note_holds(model: Model, before: Held, now: Held, started: list[Job]) -> None:
    """Tells the model of holds after a step; where several requests started in it, what ran when a new one began is not known."""
    model.holds = {pool: hold for pool, hold in model.holds.items() if pool in now}
    for pool, (engine, by) in now.items():
        starts = [j for j in started if j.request.pool == pool]
        if before.get(pool) != (engine, by) or any(j.request.rank == by.rank for j in starts):
            site = model.sites[engine]
            model.holds[pool] = Hold(site, by, {j.moment for j in site.jobs.values()} if len(starts) <= 1 else None)


def begin_hold(plan: Plan, random: Random, scheduler: Scheduler, model: Model) -> None:
    """Lets a head begin a hold sooner than it would, so that there are many, in the runs with fast lanes."""
    if "lane" not in plan.features:
        return
    pool = scheduler.pools[random.choice(plan.pools).name]
    heads = [head for queue in pool.queues if (head := queue.head()) is not None]
    if heads:
        pool.places.hold(by := random.choice(heads))
        held = pool.places.held
        if held is not None and pool.places.held_by is by:
            site = model.sites[held.spec.name]
            model.holds[pool.name] = Hold(site, by, {j.moment for j in site.jobs.values()})


def cap_now_and_then(random: Random, scheduler: Scheduler) -> None:
    """Another cap on what is less urgent than the first class with an objective, as if it had been found."""
    if random.random() < CAPPED:
        for pool in scheduler.pools.values():
            if isinstance(pool.order, Headroom):
                pool.order.cap = random.choice((1.0, 2.5, 4.0, inf))
