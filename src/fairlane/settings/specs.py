"""The settings as the core's values."""

import math

from fairlane.core.values import BucketRate, Engine, PoolSpec, PriorityClass, Tenant
from fairlane.settings.fields import SHARE_UNITS, RateLimit
from fairlane.settings.model import CallerSettings, ClassSettings, Settings
from fairlane.settings.pools import EngineSettings, PoolSettings

SLOTS_UNKNOWN = 0
"""`slots: auto` before the engine has reported."""


def pool_specs(settings: Settings) -> tuple[PoolSpec, ...]:
    """Every pool, with `SLOTS_UNKNOWN` where an engine's slots are `auto`; fractions are of the slots known so far.

    What is at the addresses of a name is not known yet, so such an entry is no engine here.
    """
    specs = []
    for pool in settings.pools:
        engines = tuple(engine_spec(pool, engine) for engine in pool.engines if not engine.looked_up)
        classes = class_specs(settings, sum(engine.slots for engine in engines))
        specs.append(PoolSpec(name=pool.name, classes=classes, engines=engines, policy=settings.scheduling.policy))
    return tuple(specs)


def class_specs(settings: Settings, pool_slots: int) -> tuple[PriorityClass, ...]:
    """The classes of a pool that has so many slots; call it again when the number changes."""
    return tuple(_class(one, rank, pool_slots) for rank, one in enumerate(settings.classes))


def tenants(settings: Settings) -> dict[str, Tenant]:
    """Every tenant by its name."""
    return {one.name: _tenant(one.name, one) for one in settings.tenants}


def tenant(settings: Settings, name: str) -> Tenant:
    """The tenant of that name.

    Raises:
        KeyError: there is none.
    """
    for one in settings.tenants:
        if one.name == name:
            return _tenant(name, one)
    raise KeyError(name)


def anonymous_tenant(settings: Settings, flow: int) -> Tenant:
    """The tenant that stands for the callers without a key whose addresses hash to this flow.

    Raises:
        KeyError: callers need a key.
    """
    if settings.anonymous is None:
        raise KeyError("anonymous")
    return _tenant(f"anonymous-{flow}", settings.anonymous)


def engine_spec(pool: PoolSettings, engine: EngineSettings) -> Engine:
    """An engine of the pool, as far as the settings know it."""
    slots = pool.slots if engine.slots is None else engine.slots
    lane = pool.fast_lane
    return Engine(
        name=engine.name,
        slots=SLOTS_UNKNOWN if slots == "auto" else slots,
        kv_tokens=engine.kv_tokens,
        prefill_tokens=engine.prefill_tokens,
        context=engine.context,
        lane_places=lane.places if lane else 0,
        lane_kv=lane.kv if lane else 0.0,
        lane_output=lane.max_output if lane else 0,
    )


def _class(one: ClassSettings, rank: int, pool_slots: int) -> PriorityClass:
    return PriorityClass(
        name=one.name,
        rank=rank,
        min_share=round(one.min_share * SHARE_UNITS),
        max_queued=one.max_queued,
        max_queued_cost=one.max_queued_cost,
        max_wait_s=one.max_wait_s,
        ttft_slo_s=one.ttft_slo_s if one.shed == "deadline" else None,
        max_running=_max_running(one.max_running, pool_slots),
        promote_after_s=one.promote_after_s,
        short_first_s=one.short_first_s,
        retry_after_min_s=one.retry_after_min_s,
        retry_after_max_s=one.retry_after_max_s,
    )


def _max_running(limit: float | None, pool_slots: int) -> int | None:
    """A fraction is rounded down, but a class may always run one request; so also while no slots are known."""
    if isinstance(limit, float):
        return max(1, math.floor(limit * pool_slots + 1e-9))
    return limit


def _tenant(name: str, caller: CallerSettings) -> Tenant:
    return Tenant(
        name=name,
        weight=caller.weight,
        max_running=caller.max_running,
        max_queued=caller.max_queued,
        requests=_bucket(caller.requests_per_minute),
        tokens=_bucket(caller.tokens_per_minute),
    )


def _bucket(limit: RateLimit | None) -> BucketRate | None:
    return None if limit is None else BucketRate(per_s=limit.rate / 60, burst=limit.burst)
