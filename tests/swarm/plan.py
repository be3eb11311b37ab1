"""A random gateway: which policy orders it, who its classes, tenants and engines are, and what happens to it how often."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from fairlane import plugins
from fairlane.core.scheduler import Scheduler
from fairlane.core.values import BASIS_POINTS, BucketRate, Engine, PoolSpec, PriorityClass, Tenant
from fairlane.plugins import POLICIES

# Each run has about half of these; what is off makes what is on happen in long undisturbed stretches.
FEATURES = (
    "shares",
    "slo",
    "short waits",
    "class running",
    "promotion",
    "tight bounds",
    "weights",
    "tenant running",
    "tenant queued",
    "buckets",
    "kv",
    "prefill",
    "context",
    "giants",
    "errors",
    "cached",
    "cancel",
    "bounce",
    "lose",
    "resize",
    "reclass",
    "respec",
    "evict",
    "burst",
    "jump",
    "mood",
    "again",
    "progress",
    "two pools",
    "frozen clock",
)
OFTEN = {"shares": 0.8, "two pools": 0.25, "slo": 0.3}  # where not by half
# In a flood nearly all that interrupts a backlog is off, so that shares are seen over long stretches.
INTERRUPTIONS = {"slo", "short waits", "class running", "promotion", "tight bounds", "tenant running", "tenant queued", "buckets"}
INTERRUPTIONS |= {"jump", "mood", "evict", "cancel", "reclass", "respec", "lose"}
# How often an event happens beside the others; one that is named like a feature happens only where that is on.
EVENTS = {
    "arrive": 5.0,
    "finish": 5.0,
    "progress": 2.0,
    "depart": 5.0,
    "tick": 3.0,
    "cancel": 0.5,
    "bounce": 0.2,
    "lose": 0.1,
    "revive": 0.3,
    "resize": 0.2,
    "reclass": 0.05,
    "respec": 0.1,
    "evict": 0.02,
    "burst": 0.4,
    "jump": 0.1,
    "mood": 0.1,
    "again": 0.2,
}
LANES = 0.4  # of the runs have fast lanes
SEVERAL = 0.4  # have requests of several sequences
NEVER_S = 1e9


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a seed decides before the first event."""

    features: frozenset[str]
    pools: tuple[PoolSpec, ...]
    tenants: tuple[Tenant, ...]
    bias: dict[str, float]  # true over predicted output, by tenant
    max_queued: int
    events: dict[str, float]


def drawn(random: Random, lanes: Random) -> Plan:
    """A plan for one run. Fast lanes and sequences are drawn by themselves: a run without them is what it would be if there were none."""
    flood = random.random() < 0.4
    often = OFTEN | (dict.fromkeys(INTERRUPTIONS, 0.1) if flood else {})
    on = frozenset(f for f in FEATURES if random.random() < often.get(f, 0.5))
    on |= {"lane"} if lanes.random() < LANES else set()
    on |= {"sequences"} if lanes.random() < SEVERAL else set()
    policy = random.choice(sorted(POLICIES)) if random.random() < 0.6 else "gmp"
    tenants = tuple(tenant(random, f"t{i}", on) for i in range(random.randint(1, 5)))
    events = {name: often for name, often in EVENTS.items() if name not in FEATURES or name in on}
    events["arrive"] *= 3.0 if flood else random.choice([0.7, 1.0, 1.5])
    return Plan(
        features=on,
        pools=tuple(
            PoolSpec(
                name, classes(random, on), tuple(engine(random, lanes, f"{name}-{i}", on) for i in range(random.randint(1, 4))), policy
            )
            for name in (("main", "side") if "two pools" in on else ("main",))
        ),
        tenants=tenants,
        bias={t.name: 4.0 ** random.uniform(-1, 1) if "errors" in on else 1.0 for t in tenants},
        max_queued=random.choice([6, 20, 50]) if "tight bounds" in on else 200,
        events=events,
    )


def classes(random: Random, on: frozenset[str], count: int | None = None) -> tuple[PriorityClass, ...]:
    """One to four classes, whose minimum shares are together at most the whole."""
    count = count or random.randint(1, 4)
    return tuple(priority_class(random, rank, BASIS_POINTS // count, on) for rank in range(count))


def priority_class(random: Random, rank: int, share_max: int, on: frozenset[str]) -> PriorityClass:
    """One class."""

    def where(feature: str, value: float) -> float | None:
        return value if feature in on and random.random() < 0.6 else None

    running = where("class running", random.randint(1, 4))
    cost = where("tight bounds", random.randint(200, 5000))
    lowest = random.choice([0.5, 1.0, 5.0])
    return PriorityClass(
        f"c{rank}",
        rank,
        random.randint(0, share_max) if "shares" in on and random.random() < 0.8 else 0,
        max_queued=random.choice([1, 4, 12]) if "tight bounds" in on else 40,
        max_queued_cost=None if cost is None else round(cost),
        max_wait_s=where("short waits", random.choice([2.0, 20.0, 200.0])) or NEVER_S,
        ttft_slo_s=where("slo", random.choice([3.0, 30.0, 300.0])),
        max_running=None if running is None else round(running),
        promote_after_s=where("promotion", random.choice([1.0, 20.0])),
        short_first_s=random.choice([0.0, 1.0, 10.0]),
        retry_after_min_s=lowest,
        retry_after_max_s=lowest * random.choice([1.0, 10.0, 1000.0]),
    )


def tenant(random: Random, name: str, on: frozenset[str]) -> Tenant:
    """One tenant."""

    def some(feature: str) -> bool:
        return feature in on and random.random() < 0.5

    return Tenant(
        name,
        weight=random.choice([0.5, 1.0, 2.0, 3.0]) if "weights" in on else 1.0,
        max_running=random.randint(1, 3) if some("tenant running") else None,
        max_queued=random.choice([0, 2, 8]) if some("tenant queued") else None,
        requests=BucketRate(random.choice([0.5, 2.0]), random.randint(2, 20)) if some("buckets") else None,
        tokens=BucketRate(random.choice([100.0, 1000.0]), random.randint(500, 5000)) if some("buckets") else None,
    )


def scheduler_of(plan: Plan) -> Scheduler:
    """The scheduler of a plan, all engines down."""
    return Scheduler(
        plan.pools,
        lambda pool: plugins.policy(pool.policy, pool.classes),
        plugins.engine_limit,
        0.0,
        make_placement=plugins.placement,
        max_queued=plan.max_queued,
    )


def engine(random: Random, lanes: Random, name: str, on: frozenset[str]) -> Engine:
    """One engine, or new numbers for it."""
    spec = Engine(
        name,
        random.randint(1, 5),
        kv_tokens=random.randint(400, 4000) if "kv" in on else None,
        prefill_tokens=random.randint(100, 2000) if "prefill" in on else None,
        context=random.choice([300, 1000, 4000]) if "context" in on and random.random() < 0.7 else None,
    )
    return with_lane(lanes, spec) if "lane" in on else spec


def sequences(lanes: Random, on: frozenset[str]) -> int:
    """How many sequences a request has; sometimes more than any engine has slots."""
    return lanes.choice([1, 1, 1, 2, 3, 20]) if "sequences" in on else 1


def with_lane(lanes: Random, spec: Engine) -> Engine:
    """The engine with a fast lane, or with one that it is too small for."""
    return replace(
        spec,
        slots=lanes.randint(3, 12),
        lane_places=lanes.randint(0, 2),
        lane_kv=lanes.choice([0.0, 0.05, 0.3]),
        lane_output=lanes.choice([10, 64]),
    )
