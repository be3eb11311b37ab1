"""The values that the core takes and returns. Costs and tokens are integers, times are seconds of one monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fairlane.core.flows import Flow
    from fairlane.core.places import EngineState
    from fairlane.errors import Reason

BASIS_POINTS = 10_000  # the whole, where shares are integers


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class BucketRate:
    """A token bucket's refill (units per second) and capacity (units)."""

    per_s: float
    burst: float


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whose request it is: a weight among the tenants of its class, and its own limits (None: no limit)."""

    name: str
    weight: float = 1.0
    max_running: int | None = None
    max_queued: int | None = None
    requests: BucketRate | None = None
    tokens: BucketRate | None = None


@dataclass(frozen=True, slots=True)
class Engine:
    """One inference server of a pool.

    `slots` is how many requests it runs at once, `kv_tokens` how many tokens its KV cache holds, `prefill_tokens` how many
    prompt tokens may be waiting for their prefill (None: no limit), `context` the most tokens of one request (None: unknown).
    """

    name: str
    slots: int
    kv_tokens: int | None = None
    prefill_tokens: int | None = None
    context: int | None = None


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """Interchangeable engines, the classes that share them, and the name of the policy that orders the classes."""

    name: str
    classes: tuple[PriorityClass, ...]
    engines: tuple[Engine, ...]
    policy: str = "gmp"


class Usage(NamedTuple):
    """What a request really used, in tokens; `cached_tokens` are prompt tokens found in the engine's prefix cache."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Prompt and output tokens together: what rate limits count."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
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


@dataclass(slots=True, eq=False)
class Request:
    """One request from its arrival to its end. The first block is given, the rest belongs to the scheduler."""

    id: int  # unique, growing with arrival
    tenant: Tenant
    pool: str
    rank: int
    model: str
    prompt_tokens: int  # estimated
    output_tokens: int  # predicted mean, at most the request's own cap: what its cost is made of
    limit_tokens: int  # prompt and output as rate limits are charged; where nothing is known, up to the request's own cap
    longest_prompt: int  # estimated, of its longest sequence where it has several
    max_tokens: int  # of that sequence, its own cap included: what an engine's context must hold
    arrived_at: float
    upper_tokens: int = 0  # output that is rarely exceeded: what KV is reserved for; `submit` raises it to the mean
    streams: bool = True  # its progress is seen, from the first token on

    state: State = NEW
    charged_beyond: int = 0  # output tokens beyond the prediction that were charged as they came
    bypassed: int = 0  # cost of what started while this head did not fit
    first_token_at: float | None = None
    in_tenant: bool = False  # counted in its tenant's running requests

    cost: int = field(init=False, repr=False)  # charged at dispatch, corrected by `settle`
    deadline: float = field(init=False, repr=False)  # latest start
    due: float | None = field(init=False, repr=False)  # latest first token
    flow: Flow = field(init=False, repr=False)
    key: float = field(init=False, repr=False)  # static order inside its tenant
    engine: EngineState = field(init=False, repr=False)
    started_at: float = field(init=False, repr=False)
    busy_at_start: float = field(init=False, repr=False)  # readings of the pool's and the class's busy clocks
    class_busy_at_start: float = field(init=False, repr=False)
    prefill_ahead: int = field(init=False, repr=False)  # prompt tokens until its first token, its own included
    prefills_since: float = field(init=False, repr=False)  # when its engine began with the first of them
    owed: bool = field(init=False, repr=False)  # whether its class was behind its guarantee when it started
    moment: int = field(init=False, repr=False)  # when it started, in the policy's count
    class_charge: int = field(init=False, repr=False)  # what its class's tag was moved by
    flow_charge: int = field(init=False, repr=False)  # what its tenant's tag was moved by
    held_tokens: int = field(init=False, repr=False)  # for its engine's limit: what it holds now,
    coming_tokens: int = field(init=False, repr=False)  # is predicted to hold besides before its end,
    prefilling: int = field(init=False, repr=False)  # and has not been seen to be prefilled


class Outcome(StrEnum):
    """How a started request ended: a fast failure must not look like a fast server."""

    COMPLETED = "completed"
    FAILED = "failed"  # the engine's doing
    CANCELLED = "cancelled"  # the client left


class Start(NamedTuple):
    """Send the request to this engine now; its place is held until `settle`."""

    request: Request
    engine: str


class Shed(NamedTuple):
    """Tell the client at once. `retry_after_s` is the least wait before coming back (None: coming back cannot help).

    The edge adds a random part of at most `jitter_s`, so that refused clients do not return as one wave.
    """

    request: Request
    reason: Reason
    retry_after_s: float | None = None
    jitter_s: float = 0.0


Decision = Start | Shed
