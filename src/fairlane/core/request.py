"""A request, and what the scheduler decides about it."""

from dataclasses import dataclass, field
from typing import NamedTuple

from fairlane.core.flows import Flow
from fairlane.core.places import EngineState
from fairlane.core.values import NEW, State, Tenant
from fairlane.errors import Reason


class Prefix(NamedTuple):
    """Keys of what a prompt may share with others in a prefix cache; 0: nothing."""

    whole: int  # this very prompt
    before: int = 0  # the prompt of the turn before in its conversation
    template: int = 0
    template_tokens: int = 0


@dataclass(eq=False)
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
    short: bool = False  # may use the fast lane; its engine's limit clears it when the request outgrows that
    sequences: int = 1  # that the engine runs for it at once, each in a slot of its own
    streams: bool = True  # its progress is seen, from the first token on
    prefix: Prefix | None = None  # None: its engine is chosen without regard to prefix caches

    state: State = NEW
    charged_beyond: int = 0  # output tokens beyond the prediction that were charged as they came
    bypassed: int = 0  # cost of what started while this head did not fit
    due: float | None = None  # latest first token
    first_token_at: float | None = None
    cached_tokens: int = 0  # of its prompt, expected in the prefix cache of its engine
    in_tenant: bool = False  # counted in its tenant's running requests

    cost: int = field(init=False, repr=False)  # charged at dispatch, corrected by `settle`
    deadline: float = field(init=False, repr=False)  # latest start
    flow: Flow = field(init=False, repr=False)
    key: float = field(init=False, repr=False)  # static order inside its tenant
    engine: EngineState = field(init=False, repr=False)
    started_at: float = field(init=False, repr=False)
    busy_at_start: float = field(init=False, repr=False)  # readings of the pool's and the class's busy clocks
    class_busy_at_start: float = field(init=False, repr=False)
    prefill_ahead: int = field(init=False, repr=False)  # prompt tokens to be prefilled until its first token, its own included
    prefills_since: float = field(init=False, repr=False)  # when its engine began with the first of them
    owed: bool = field(init=False, repr=False)  # whether its class was behind its guarantee when it started
    moment: int = field(init=False, repr=False)  # when it started, in the policy's count
    class_charge: int = field(init=False, repr=False)  # what its class's tag was moved by
    flow_charge: int = field(init=False, repr=False)  # what its tenant's tag was moved by
    held_tokens: int = field(init=False, repr=False)  # for its engine's limit: what it holds now,
    coming_tokens: int = field(init=False, repr=False)  # is predicted to hold besides before its end,
    prefilling: int = field(init=False, repr=False)  # and has not been seen to be prefilled


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
