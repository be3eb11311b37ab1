"""What the gateway counts about itself, as plain numbers: about a microsecond for all of a request.

Counters and histograms are fed by the edge. Gauges are not kept at all: `sample` is asked for them at each scrape, so they
cannot drift from the state that they describe. Every series exists from the start with the value 0, because a rate over a
series that appears with its first event misses that event. Labels are closed sets (see `table`): an unknown class, pool or
outcome is a mistake of ours and raises KeyError, an engine's odd status is the world's and counts as "other". An engine that is
gone takes its series with it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairlane.telemetry.histogram import Histogram
from fairlane.telemetry.table import (
    ANONYMOUS,
    CACHED,
    DIRECTIONS,
    FAILURE_KINDS,
    HEEDS,
    LIMIT_MOVES,
    NO_CLASS,
    OTHER,
    OUTCOMES,
    REFUSAL_STATUSES,
    SHED_REASONS,
    TABLE,
    Metric,
)
from fairlane.telemetry.trail import Trail

if TYPE_CHECKING:
    from fairlane.telemetry.exposition import Exposition

Series = Mapping[tuple[str, ...], float | Histogram]
Counts = dict[str, dict[str, int]]
_REQUESTS = "requests"
_CACHED = (*CACHED, _REQUESTS)


@dataclass(frozen=True)
class ClassSample:
    """One class of one pool at the moment of a scrape."""

    pool: str
    cls: str
    backlog_requests: int = 0
    backlog_cost: int = 0
    running: int = 0
    oldest_waiting_s: float = 0.0
    min_share_ratio: float = 0.0


@dataclass(frozen=True)
class EngineSample:
    """One engine at the moment of a scrape."""

    pool: str
    engine: str
    running: int = 0
    slots: int = 0
    up: bool = False
    draining: bool = False  # it gets no new requests
    measured: bool = False  # it told its load in the last round of probes; what follows is the last that it told
    told_running: int = 0
    told_waiting: int = 0
    kv_ratio: float = 0.0
    preemptions: int = 0
    limit_move: str | None = None  # one of `LIMIT_MOVES`; None where the number of slots is fixed
    kv_limit_ratio: float = 0.0
    heeds_priority: str | None = None  # one of `HEEDS`; None for an engine that is gone


@dataclass(frozen=True)
class Sample:
    """All that gauges show. What it leaves out counts as 0; rows outside the configured sets make no series."""

    classes: Sequence[ClassSample]
    engines: Sequence[EngineSample]
    tenants_running: Mapping[str, int]
    client_connections: int


class Metrics:
    """Every metric of one gateway. `pools` maps a pool's name to the names of its engines."""

    def __init__(
        self, classes: Sequence[str], pools: Mapping[str, Sequence[str]], tenants: Iterable[str], sample: Callable[[], Sample]
    ) -> None:
        engines = [engine for names in pools.values() for engine in names]
        callers = [*classes, NO_CLASS]
        self._classes = tuple(classes)
        self._engines = [(pool, engine) for pool, names in pools.items() for engine in names]
        self._tenants = tuple(dict.fromkeys((*tenants, ANONYMOUS)))
        self._sample = sample
        self._requests = _zeros(callers, OUTCOMES)
        self._shed = _zeros(callers, SHED_REASONS)
        self._tokens = _zeros(classes, DIRECTIONS)
        self._tenant_requests = _zeros(self._tenants, OUTCOMES)
        self._tenant_tokens = _zeros(self._tenants, DIRECTIONS)
        self._served = _zeros(pools, classes)
        self._refusals = _zeros(engines, REFUSAL_STATUSES)
        self._cached = _zeros(engines, _CACHED)
        self._failures = _zeros(engines, FAILURE_KINDS)
        self._yields = dict.fromkeys(classes, 0)
        self._yielded_tokens = dict.fromkeys(classes, 0)
        self._waits = {cls: Histogram() for cls in classes}
        self._ttfts = {cls: Histogram() for cls in classes}
        self._totals = {cls: Histogram() for cls in classes}
        self._exposition: Exposition | None = None

    def waited(self, cls: str, seconds: float) -> None:
        """A request of this class starts on an engine after this wait."""
        self._waits[cls].observe(seconds)

    def first_token(self, cls: str, seconds: float) -> None:
        """The first byte of the answer's body left this long after the request arrived."""
        self._ttfts[cls].observe(seconds)

    def yielded(self, cls: str, tokens: int) -> None:
        """A request of this class gave its place away; so many tokens were made for it in vain, at most."""
        self._yields[cls] += 1
        self._yielded_tokens[cls] += tokens

    def request(self, trail: Trail, total_s: float) -> None:
        """Count a request that is over, once for each. Its wait and its first token were counted when they came.

        Only completed ones of a class are timed as a whole: a fast failure must not look like a fast server. Only reasons
        of rejections and evictions are shedding.
        """
        cls, outcome, reason, caller = trail.cls, trail.outcome, trail.reason, trail.caller
        tokens_in, tokens_out = trail.tokens_in, trail.tokens_out
        self._requests[cls][outcome] += 1
        if caller:
            self._tenant_requests[caller][outcome] += 1
        if reason is not None and reason in self._shed[cls]:
            self._shed[cls][reason] += 1
        if outcome == "completed" and cls != NO_CLASS:
            self._totals[cls].observe(total_s)
        if tokens_in is not None and tokens_out is not None:
            self._served[trail.pool][cls] += trail.cost
            for tokens in (self._tokens[cls], self._tenant_tokens[caller]):
                tokens["in"] += tokens_in
                tokens["out"] += tokens_out

    def reset_engines(self, pool: str, engines: Sequence[str]) -> None:
        """The pool has these engines now: those that are new begin with 0, those that are gone have no series any more."""
        before = {engine for of, engine in self._engines if of == pool}
        self._engines = [place for place in self._engines if place[0] != pool] + [(pool, engine) for engine in engines]
        for counts, kinds in ((self._refusals, REFUSAL_STATUSES), (self._failures, FAILURE_KINDS), (self._cached, _CACHED)):
            for gone in before.difference(engines):
                del counts[gone]
            for engine in engines:
                counts.setdefault(engine, dict.fromkeys(kinds, 0))

    def cached(self, engine: str, expected: int, told: int) -> None:
        """An answered request had so many prompt tokens in the engine's prefix cache, as was expected and as it told."""
        if expected or told:
            counts = self._cached[engine]
            counts["expected"] += expected
            counts["told"] += told
            counts[_REQUESTS] += expected > 0

    def engine_refused(self, engine: str, status: int) -> None:
        """An engine answered with an error status of its own."""
        _count(self._refusals[engine], str(status))

    def engine_failed(self, engine: str, kind: str) -> None:
        """An engine failed without an error status; `kind` is one of `FAILURE_KINDS`."""
        _count(self._failures[engine], kind)

    def render(self) -> bytes:
        """All metrics in the Prometheus text format 0.0.4. The library that writes it is loaded at the first scrape."""
        if self._exposition is None:
            from fairlane.telemetry.exposition import Exposition  # noqa: PLC0415 - loading it would delay listening by 50 ms

            self._exposition = Exposition(self.collect)
        return self._exposition.render()

    def collect(self) -> Iterator[tuple[Metric, Series]]:
        """Every row of the table with its series, all gauges from one sample."""
        sample = self._sample()
        series = {**self._class_gauges(sample.classes), **self._other_gauges(sample), **self._events()}
        for metric in TABLE:
            yield metric, series[metric.name.removeprefix("fairlane_")]

    def _class_gauges(self, samples: Sequence[ClassSample]) -> dict[str, Series]:
        known = {(row.pool, row.cls): row for row in samples}
        places = [(pool, cls) for pool in self._served for cls in self._classes]
        rows = [known.get(place) or ClassSample(*place) for place in places]
        oldest = dict.fromkeys(self._classes, 0.0)
        for row in rows:
            oldest[row.cls] = max(oldest[row.cls], row.oldest_waiting_s)
        return {
            "backlog_requests": {(row.pool, row.cls): row.backlog_requests for row in rows},
            "backlog_cost": {(row.pool, row.cls): row.backlog_cost for row in rows},
            "running_requests": {(row.pool, row.cls): row.running for row in rows},
            "min_share_ratio": {(row.pool, row.cls): row.min_share_ratio for row in rows},
            "served_share_ratio": {(row.pool, row.cls): self._share(row.pool, row.cls) for row in rows},
            "oldest_waiting_seconds": {(cls,): seconds for cls, seconds in oldest.items()},
            "queue_wait_seconds_max": {(cls,): waits.max_s for cls, waits in self._waits.items()},
        }

    def _share(self, pool: str, cls: str) -> float:
        served = self._served[pool]
        return served[cls] / (sum(served.values()) or 1)

    def _other_gauges(self, sample: Sample) -> dict[str, Series]:
        known = {(row.pool, row.engine): row for row in sample.engines}
        rows = [known.get(place) or EngineSample(*place) for place in self._engines]
        return {
            "engine_running_requests": {(row.pool, row.engine): row.running for row in rows},
            "engine_slots": {(row.pool, row.engine): row.slots for row in rows},
            "engine_up": {(row.pool, row.engine): float(row.up) for row in rows},
            "engine_draining": {(row.pool, row.engine): float(row.draining) for row in rows},
            "engine_metrics_up": {(row.pool, row.engine): float(row.measured) for row in rows},
            "engine_told_running_requests": {(row.pool, row.engine): row.told_running for row in rows},
            "engine_told_waiting_requests": {(row.pool, row.engine): row.told_waiting for row in rows},
            "engine_kv_ratio": {(row.pool, row.engine): row.kv_ratio for row in rows},
            "engine_limit_move": {(row.pool, row.engine, move): float(row.limit_move == move) for row in rows for move in LIMIT_MOVES},
            "engine_heeds_priority": {(row.pool, row.engine, heeds): float(row.heeds_priority == heeds) for row in rows for heeds in HEEDS},
            "engine_kv_limit_ratio": {(row.pool, row.engine): row.kv_limit_ratio for row in rows},
            "engine_preemptions_total": {(row.pool, row.engine): row.preemptions for row in rows},
            "tenant_running_requests": {(tenant,): sample.tenants_running.get(tenant, 0) for tenant in self._tenants},
            "client_connections": {(): sample.client_connections},
        }

    def _events(self) -> dict[str, Series]:
        return {
            "requests_total": _flat(self._requests),
            "shed_total": _flat(self._shed),
            "tokens_total": _flat(self._tokens),
            "tenant_requests_total": _flat(self._tenant_requests),
            "tenant_tokens_total": _flat(self._tenant_tokens),
            "served_cost_total": _flat(self._served),
            "engine_refusals_total": _flat(self._refusals),
            "engine_failures_total": _flat(self._failures),
            "cached_requests_total": {(engine,): counts[_REQUESTS] for engine, counts in self._cached.items()},
            "cached_tokens_total": {(engine, by): counts[by] for engine, counts in self._cached.items() for by in CACHED},
            "yielded_total": {(cls,): count for cls, count in self._yields.items()},
            "yielded_tokens_total": {(cls,): tokens for cls, tokens in self._yielded_tokens.items()},
            "queue_wait_seconds": {(cls,): waits for cls, waits in self._waits.items()},
            "ttft_seconds": {(cls,): ttfts for cls, ttfts in self._ttfts.items()},
            "request_seconds": {(cls,): totals for cls, totals in self._totals.items()},
        }


def _zeros(outer: Iterable[str], inner: Iterable[str]) -> Counts:
    names = tuple(inner)
    return {key: dict.fromkeys(names, 0) for key in outer}


def _count(counts: dict[str, int], key: str) -> None:
    counts[key if key in counts else OTHER] += 1


def _flat(counts: Counts) -> Series:
    return {(outer, inner): count for outer, row in counts.items() for inner, count in row.items()}
