"""What is simulated: everything that a run depends on, in one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fairlane import plugins
from fairlane.core.protocols import Policy
from fairlane.core.scheduler import Scheduler
from fairlane.core.values import Engine, PoolSpec, PriorityClass
from fairlane.policies.headroom import Headroom
from fairlane.policies.limits.adaptive import START_SLOTS
from fairlane.sim.engine.model import REFERENCE_ENGINE, EngineModel
from fairlane.sim.forecast import Forecast
from fairlane.sim.load.clients import Clients
from fairlane.sim.load.workload import CLASSES, REFERENCE, Load, Phase

POOL = "main"
NO_GATEWAY = "none"  # the policy of having no gateway: every request goes straight to the engine
TTFT_SLO_S = (1.5, 4.0, 12.0, None)
TENANT_WEIGHT = (5.0, 2.5, 1.5, 1.0)  # by class: what tells tenants apart for an order that knows no classes
FOR_EVER_S = 1e9
CAP = 64  # requests at once, where our limiter is off
PREFILL_TOKENS = 8000  # prompt tokens without a first token, where it is on: part of the reference workload
LANE_PLACES, LANE_KV, LANE_INPUT, LANE_OUTPUT = 1, 0.05, 1024, 64  # the fast lane's defaults, where it is on


@dataclass(frozen=True, slots=True)
class Setup:
    """One run. `load` scales the arrivals of `source`; figures are taken for `duration_s` after `warmup_s`."""

    policy: str
    seed: int = 1
    load: float = 1.0
    source: Load = REFERENCE
    limiter: bool = True
    slots: int | None = None  # of each engine; by default as many as it can run, and CAP without the limiter
    adaptive: bool = False  # the engines' limits find themselves
    kv_known: bool = True  # whether the engine tells how many tokens its KV cache holds
    shed: bool = True
    clients: Clients = field(default_factory=Clients)
    model: EngineModel = REFERENCE_ENGINE
    engines: int = 1
    last_there: tuple[float, float] | None = None  # when the last engine comes and when it goes; None: it is there all the time
    brownouts: tuple[Phase, ...] = ()  # engines work `factor` times as long at each step
    overload: Phase | None = None  # the time of trouble, for which recovery is timed
    fast_lane: bool = False  # kept for short requests on each engine
    short_first: bool = True  # inside a tenant
    holds: bool = True
    headroom: bool = True  # for urgent requests that are still to come
    yield_waste: float = 0.0  # part of all tokens that may be wasted so that batch gives its places to more urgent requests
    forecast: Forecast = Forecast.LEARNED
    forecast_error: float = 1.0  # predictions are off by up to this factor, both ways
    warmup_s: float = 60.0
    duration_s: float = 420.0
    kept_ratio: float = 0.0  # of sheds that the oracle undoes

    @property
    def scored_until_s(self) -> float:
        """When the scored time ends; the run goes on until the fate of what arrived in it is known."""
        return self.warmup_s + self.duration_s

    @property
    def until_s(self) -> float:
        """When the run ends."""
        return self.scored_until_s + max(slo for slo in TTFT_SLO_S if slo is not None)


def classes(*, shed: bool, max_queued: int = 400) -> tuple[PriorityClass, ...]:
    """The four classes of the reference workload; without shedding only the number that waits is bounded."""
    return tuple(
        PriorityClass(
            name,
            rank,
            min_share=(3000, 1500, 1000, 1000)[rank],
            max_queued=max_queued,
            max_wait_s=FOR_EVER_S,
            ttft_slo_s=TTFT_SLO_S[rank] if shed else None,
            short_first_s=(1.0, 3.0, 10.0, 600.0)[rank],
            retry_after_min_s=(1.0, 1.0, 2.0, 30.0)[rank],
            retry_after_max_s=(10.0, 30.0, 120.0, 3600.0)[rank],
        )
        for rank, name in enumerate(CLASSES)
    )


def engine_name(index: int) -> str:
    """The name of an engine in the pool."""
    return f"engine-{index}"


def _engine(setup: Setup, index: int) -> Engine:
    model = setup.model
    if not setup.limiter:
        return Engine(engine_name(index), setup.slots or CAP, context=model.kv_tokens)
    slots = START_SLOTS if setup.adaptive else setup.slots or model.running_max
    engine = Engine(engine_name(index), slots, model.kv_tokens if setup.kv_known else None, PREFILL_TOKENS, model.kv_tokens)
    return replace(engine, lane_places=LANE_PLACES, lane_kv=LANE_KV, lane_output=LANE_OUTPUT) if setup.fast_lane else engine


def _policy(setup: Setup, kinds: Sequence[PriorityClass]) -> Policy:
    policy = plugins.policy(setup.policy, kinds)
    if not setup.headroom and isinstance(policy.classes, Headroom):
        return Policy(policy.classes.inner, policy.tenants)
    return policy


def engine_specs(setup: Setup) -> tuple[Engine, ...]:
    """The run's engines as the scheduler knows them."""
    return tuple(_engine(setup, index) for index in range(setup.engines))


def make_scheduler(setup: Setup) -> Scheduler:
    """The production scheduler over the run's engines, all up."""
    engines = engine_specs(setup)
    kinds = classes(shed=setup.shed)
    if not setup.short_first:
        kinds = tuple(replace(one, short_first_s=0.0) for one in kinds)
    spec = PoolSpec(POOL, kinds, engines, setup.policy, setup.holds)
    scheduler = Scheduler([spec], lambda pool: _policy(setup, pool.classes), plugins.engine_limit, 0.0, make_placement=plugins.placement)
    for engine in engines:
        scheduler.engine_report(POOL, engine.name, up=True)
    return scheduler
