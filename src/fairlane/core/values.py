"""The values that the core takes and returns. Costs and tokens are integers, times are seconds of one monotonic clock."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

BASIS_POINTS = 10_000  # the whole, where shares are integers


@dataclass(frozen=True)
class PriorityClass:
    """One priority class of a pool; `rank` 0 is the most urgent, and the order of the settings gives it.
    `min_share` is in basis points of the served cost (1000 = 10 %), `max_queued_cost` in cost units, times in seconds.
    `max_wait_s` bounds the wait; with `ttft_slo_s` a request is shed as well once its first token would come later than that.
    A head that has waited `promote_after_s` competes one rank higher, never more.
    `short_first_s` bounds how far a short request may overtake inside its tenant (W_c of the request key).
    """

    name: str
    rank: int
    min_share: int = 0
    max_queued: int = 1000
    max_queued_cost: int | None = None
    max_wait_s: float = 60.0
    ttft_slo_s: float | None = None
    max_running: int | None = None
    promote_after_s: float | None = None
    short_first_s: float = 1.0
    retry_after_min_s: float = 1.0
    retry_after_max_s: float = 60.0


@dataclass(frozen=True)
class BucketRate:
    """A token bucket's refill (units per second) and capacity (units)."""

    per_s: float
    burst: float


@dataclass(frozen=True)
class Tenant:
    """Whose request it is: a weight among the tenants of its class, and its own limits (None: no limit)."""

    name: str
    weight: float = 1.0
    max_running: int | None = None
    max_queued: int | None = None
    requests: BucketRate | None = None
    tokens: BucketRate | None = None


@dataclass(frozen=True)
class Engine:
    """One inference server of a pool.
    `slots` is how many sequences it runs at once, `kv_tokens` how many tokens its KV cache holds, `prefill_tokens` how many
    prompt tokens may be waiting for their prefill (None: learned), `context` the most tokens of one request (None: unknown).
    Its fast lane: `lane_places` slots and a part `lane_kv` of the KV for short requests, of at most `lane_output` output tokens.
    """

    name: str
    slots: int
    kv_tokens: int | None = None
    prefill_tokens: int | None = None
    context: int | None = None
    lane_places: int = 0
    lane_kv: float = 0.0
    lane_output: int = 0


@dataclass(frozen=True)
class PoolSpec:
    """Interchangeable engines, the classes that share them, and the name of the policy that orders the classes."""

    name: str
    classes: tuple[PriorityClass, ...]
    engines: tuple[Engine, ...]
    policy: str = "gmp"
    holds: bool = True  # an engine may be held for a head that fits nowhere


class Usage(NamedTuple):
    """What a request really used, in tokens; `cached_tokens` are prompt tokens found in the engine's prefix cache."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Prompt and output tokens together: what rate limits count."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True)
class CostWeights:
    """Cost units per prompt token that is not cached and per output token: the currency of tags, shares and bounds."""

    input: int = 1
    output: int = 4

    def cost(self, usage: Usage) -> int:
        """`w_in·(n_in − n_cached) + w_out·n_out`, never below zero."""
        prompt, output, cached = usage
        return max(0, self.input * (prompt - cached)) + self.output * output


class State(StrEnum):
    """Where a request is on its one way through the scheduler."""

    NEW = "new"
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


NEW, WAITING, RUNNING, ENDED = State  # members of an Enum are slow to look up


class Outcome(StrEnum):
    """How a started request ended: a fast failure must not look like a fast server."""

    COMPLETED = "completed"
    FAILED = "failed"  # the engine's doing
    CANCELLED = "cancelled"  # the client left
