"""The one table of all metrics, and the closed sets that their labels take.

No label ever holds a value that a client chose: pools, classes, engines and tenants come from the settings, the rest from the
sets below. So the number of series is fixed when the gateway starts, whatever is sent to it; but an engine for each address of a
name comes and goes with its series, up to a bound.
"""

from dataclasses import dataclass
from enum import StrEnum

from fairlane.core.values import Outcome
from fairlane.errors import RULES, Family

NO_CLASS = "none"
ANONYMOUS = "anonymous"
OTHER = "other"

OUTCOMES: tuple[str, ...] = (*Outcome, Family.REJECTED, Family.EVICTED, Family.INVALID)
SHED_REASONS: tuple[str, ...] = tuple(reason for reason, rule in RULES.items() if rule.family in {Family.REJECTED, Family.EVICTED})
REFUSAL_STATUSES: tuple[str, ...] = (
    *("400", "401", "403", "404", "408", "413", "422", "429"),
    *("500", "502", "503", "504", "529", OTHER),
)
FAILURE_KINDS: tuple[str, ...] = ("unreachable", "reset", "closed", "garbage", "timeout", "error_event", "exited", OTHER)
HEEDS: tuple[str, ...] = ("unknown", "yes", "no")
LIMIT_MOVES: tuple[str, ...] = ("start", "demand", "preemption", "waiting", "tpot", "ttft", "refused", "no_gain", "stale")
DIRECTIONS: tuple[str, ...] = ("in", "out")
CACHED: tuple[str, ...] = ("expected", "told")


class Kind(StrEnum):
    """What Prometheus calls the type of a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    """One row of the table."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


def _gauge(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(f"fairlane_{name}", Kind.GAUGE, labels, text)


def _counter(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(f"fairlane_{name}", Kind.COUNTER, labels, text)


def _histogram(name: str, text: str) -> Metric:
    return Metric(f"fairlane_{name}", Kind.HISTOGRAM, ("class",), text)


TABLE: tuple[Metric, ...] = (
    _gauge("backlog_requests", ("pool", "class"), "Requests that wait for an engine."),
    _gauge("backlog_cost", ("pool", "class"), "Expected cost of the requests that wait."),
    _gauge("running_requests", ("pool", "class"), "Requests that an engine has."),
    _gauge("oldest_waiting_seconds", ("class",), "How long the longest waiting request has waited so far."),
    _gauge("queue_wait_seconds_max", ("class",), "Longest wait of a request that started, since the gateway started."),
    _gauge("served_share_ratio", ("pool", "class"), "The class's part of the pool's served cost, since the gateway started."),
    _gauge("min_share_ratio", ("pool", "class"), "The part of the pool's service that is guaranteed to the class."),
    _gauge("engine_running_requests", ("pool", "engine"), "Requests that the engine has, one of several sequences counted as so many."),
    _gauge("engine_slots", ("pool", "engine"), "Requests that the engine may have at once, counted in the same way."),
    _gauge("engine_limit_move", ("pool", "engine", "move"), "1 for why the slots that are found by the gateway moved last; else 0."),
    _gauge("engine_heeds_priority", ("pool", "engine", "heeds"), "1 for whether the engine is seen to heed the order of requests; else 0."),
    _gauge("engine_kv_limit_ratio", ("pool", "engine"), "Part of the engine's KV cache that may be reserved, as found by the gateway."),
    _gauge("engine_up", ("pool", "engine"), "1 if the engine can be given requests, else 0; a draining one could."),
    _gauge("engine_draining", ("pool", "engine"), "1 if the engine gets no new requests, as it is drained or its address is gone, else 0."),
    _gauge("engine_metrics_up", ("pool", "engine"), "1 if the engine told its load in the last round of probes, else 0."),
    _gauge("engine_told_running_requests", ("pool", "engine"), "Requests that the engine runs, as it told last, whoever sent them."),
    _gauge("engine_told_waiting_requests", ("pool", "engine"), "Requests that wait inside the engine, as it told last."),
    _gauge("engine_kv_ratio", ("pool", "engine"), "Used part of the engine's KV cache, as it told last; of the fullest rank."),
    _gauge("tenant_running_requests", ("tenant",), "Requests of the tenant that an engine has."),
    _gauge("client_connections", (), "Open connections of clients."),
    _counter("requests_total", ("class", "outcome"), "Requests that ended, by how they ended."),
    _counter("shed_total", ("class", "reason"), "Requests that were rejected or evicted, by reason."),
    _counter("tokens_total", ("class", "direction"), "Tokens of served requests, prompt (in) and output (out)."),
    _counter("served_cost_total", ("pool", "class"), "Cost of served requests, from their real usage."),
    _counter("engine_refusals_total", ("engine", "status"), "Answers of an engine with an error status of its own."),
    _counter("engine_failures_total", ("engine", "kind"), "Failures of an engine without an error status, by kind."),
    _counter("engine_preemptions_total", ("pool", "engine"), "Requests whose work the engine threw away for want of KV, as it told last."),
    _counter(
        "cached_requests_total", ("engine",), "Answered requests that were sent where a part of their prompt was expected in the cache."
    ),
    _counter(
        "cached_tokens_total", ("engine", "by"), "Their prompt tokens in the prefix cache: expected by the gateway, told by the engine."
    ),
    _counter("tenant_requests_total", ("tenant", "outcome"), "Requests of the tenant that ended, by how they ended."),
    _counter("tenant_tokens_total", ("tenant", "direction"), "Tokens of the tenant's served requests, prompt (in) and output (out)."),
    _counter("yielded_total", ("class",), "Times that a running request gave its place to a more urgent one and waited again."),
    _counter("yielded_tokens_total", ("class",), "Tokens that were made in vain for requests that gave way, prompts included, at most."),
    _histogram("queue_wait_seconds", "From arrival to the start on an engine, of requests that started."),
    _histogram("ttft_seconds", "From arrival to the first byte of the answer's body."),
    _histogram("request_seconds", "From arrival to the last byte, of completed requests."),
)
