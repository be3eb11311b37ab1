"""What arrives when: tenants with a class, a rate, a burstiness and a source of lengths; or a recorded trace.

Gaps between the requests of a tenant are gamma distributed: `cv` is their coefficient of variation, 1 is Poisson, above it
requests come in bunches. Each tenant draws from a stream of its own, seeded by the run's seed and its name, so a surge of one
class leaves the arrivals of all others as they were.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from fairlane.sim.load.lengths import TABLES, table
from fairlane.sim.load.traces import Row, TraceError

CLASSES = ("realtime", "paid", "free", "batch")


class Arrival(NamedTuple):
    """One request that somebody wants answered."""

    at: float
    tenant: str
    rank: int
    prompt_tokens: int
    output_tokens: int


class Phase(NamedTuple):
    """From `begin_s` to `end_s` a tenant's rate is multiplied by `factor`; beyond all phases it is as it is."""

    begin_s: float
    end_s: float
    factor: float


class Load(Protocol):
    """A source of arrivals."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    def arrivals(self, load: float, seed: int, until_s: float) -> list[Arrival]:
        """All requests before `until_s` at `load` times the nominal rate, in order of time."""
        ...


@dataclass(frozen=True, slots=True)
class TenantLoad:
    """One tenant's stream of requests at load 1."""

    name: str
    rank: int
    rate_per_s: float
    cv: float
    lengths: str
    phases: tuple[Phase, ...] = ()

    def draw(self, load: float, seed: int, until_s: float) -> Iterator[Arrival]:
        """Its requests before `until_s`."""
        rng = random.Random(f"{seed}/{self.name}")  # noqa: S311 - no secret
        shape = 1 / self.cv**2
        pairs = table(self.lengths)
        now = 0.0
        while True:
            now = self._after(now, rng.gammavariate(shape, 1 / shape) / (self.rate_per_s * load))
            if now >= until_s:
                return
            yield Arrival(now, self.name, self.rank, *pairs[int(rng.random() * len(pairs))])

    def _after(self, now: float, gap: float) -> float:
        """The moment at which `gap` seconds at the plain rate have passed; phases make that sooner or later."""
        for phase in self.phases:
            if now >= phase.end_s:
                continue
            if now + gap <= phase.begin_s:
                break
            gap -= max(0.0, phase.begin_s - now)
            now = max(now, phase.begin_s)
            if not phase.factor and phase.end_s == math.inf:
                return math.inf
            if phase.factor and gap <= (phase.end_s - now) * phase.factor:
                return now + gap / phase.factor
            gap -= (phase.end_s - now) * phase.factor
            now = phase.end_s
        return now + gap


@dataclass(frozen=True, slots=True)
class Mix:
    """Tenants that send side by side."""

    name: str
    tenants: tuple[TenantLoad, ...]

    def arrivals(self, load: float, seed: int, until_s: float) -> list[Arrival]:
        """As the protocol says; requests of the same moment stand in the order of the tenants."""
        return sorted((a for tenant in self.tenants for a in tenant.draw(load, seed, until_s)), key=lambda a: a.at)

    def surged(self, factors: Mapping[str, float]) -> Mix:
        """The same with the rates of these classes multiplied throughout."""
        by_rank = {CLASSES.index(name): factor for name, factor in factors.items()}
        return replace(self, tenants=tuple(replace(t, rate_per_s=t.rate_per_s * by_rank.get(t.rank, 1.0)) for t in self.tenants))

    def phased(self, name: str, *phases: Phase) -> Mix:
        """The same with every tenant's rate going through these phases."""
        return Mix(name, tuple(replace(t, phases=phases) for t in self.tenants))


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trace, run `load` times as fast as it was recorded.

    A row's class is its own where the trace tells it. Else each tenant is of one class, and a row without a tenant is taken for
    one of the reference workload's; both are drawn by seed in that workload's proportions.
    """

    name: str
    rows: Sequence[Row]

    def arrivals(self, load: float, seed: int, until_s: float) -> list[Arrival]:
        """As the protocol says."""
        rng = random.Random(f"{seed}/{self.name}")  # noqa: S311 - no secret
        owners: dict[str, TenantLoad] = {}
        rates = [t.rate_per_s for t in REFERENCE.tenants]
        found = []
        for row in self.rows:
            if row.t / load >= until_s:
                break
            owner = rng.choices(REFERENCE.tenants, rates)[0] if row.tenant is None or row.tenant not in owners else owners[row.tenant]
            owners.setdefault(row.tenant or "", owner)
            rank = owner.rank if row.class_name is None else _rank(row.class_name, self.name)
            found.append(Arrival(row.t / load, row.tenant or owner.name, rank, row.prompt_tokens, row.output_tokens))
        return found


def _rank(class_name: str, trace: str) -> int:
    if class_name not in CLASSES:
        raise TraceError(f"{trace}: unknown class {class_name!r}; known: {', '.join(CLASSES)}")
    return CLASSES.index(class_name)


def _tenants(rank: int, lengths: str, **streams: tuple[float, float]) -> tuple[TenantLoad, ...]:
    return tuple(TenantLoad(name, rank, rate, cv, lengths) for name, (rate, cv) in streams.items())


_CONV, _CODE, _MOON = TABLES
REFERENCE = Mix(
    "reference",
    _tenants(0, _CONV, a=(0.9, 2), b=(0.9, 1))
    + _tenants(0, _CODE, c=(0.9, 1))
    + _tenants(1, _CONV, d=(0.5, 1), e=(0.5, 1), hog=(2.2, 4))
    + _tenants(2, _CONV, f=(0.6, 2))
    + _tenants(2, _CODE, g=(0.6, 1))
    + _tenants(2, _MOON, h=(0.4, 1))
    + _tenants(3, _MOON, i=(0.35, 1), j=(0.35, 1)),
)
NOISY = Mix(
    "noisy",
    _tenants(0, _CONV, **{"p0-noisy": (2.0, 2), "p0-1": (0.2, 1), "p0-2": (0.2, 1), "p0-3": (0.2, 1)})
    + _tenants(1, _CONV, **{"p1-noisy": (2.0, 2), "p1-1": (0.2, 1), "p1-2": (0.2, 1), "p1-3": (0.2, 1)})
    + _tenants(2, _CONV, **{"p2-noisy": (1.0, 2), "p2-1": (0.1, 1), "p2-2": (0.1, 1), "p2-3": (0.1, 1)})
    + _tenants(3, _MOON, **{"p3-noisy": (0.5, 2), "p3-1": (0.05, 1), "p3-2": (0.05, 1), "p3-3": (0.05, 1)}),
)
PLACES = Mix(  # for few places: short answers to the most urgent, long ones to all others
    "places",
    _tenants(0, _CODE, a=(0.7, 1), b=(0.7, 1))
    + _tenants(1, _CONV, c=(0.6, 1))
    + _tenants(2, _CONV, d=(0.4, 1))
    + _tenants(3, _CONV, e=(1.0, 1)),
)
NIGHTLY = Mix("nightly", _tenants(0, _CODE, chat=(0.5, 1)) + _tenants(3, _CONV, job=(3.0, 1)))  # batch, and a few who are in a hurry
SHIFT_S = 300.0  # until then prompts are short, from then on long
SHIFT = Mix(
    "shift",
    tuple(
        TenantLoad(f"{name}{when}", rank, rate, 1, lengths, phases)
        for when, lengths, scale, phases in (
            ("-short", _CODE, 2.0, (Phase(SHIFT_S, math.inf, 0.0),)),
            ("-long", _MOON, 0.4, (Phase(0.0, SHIFT_S, 0.0),)),
        )
        for name, rank, rate in (("a", 0, scale), ("b", 1, scale), ("c", 2, scale), ("d", 3, scale))
    ),
)


def table_mix(name: str) -> Mix:
    """Requests drawn from one table at the rate of its trace, shared out over the tenants of the reference workload."""
    facts = TABLES[name]
    whole = math.fsum(t.rate_per_s for t in REFERENCE.tenants)
    parts = (replace(t, lengths=name, cv=facts.cv, rate_per_s=facts.rate_per_s * t.rate_per_s / whole) for t in REFERENCE.tenants)
    return Mix(name, tuple(parts))
