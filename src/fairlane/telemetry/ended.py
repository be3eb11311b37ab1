"""What the counters and the log take of a request that is over."""

from typing import Protocol


class Ended(Protocol):
    """A request that is over. What did not come to be is None: an engine for one that was refused, tokens for one that failed."""

    request_id: str
    path: str
    caller: str  # its label; empty where it is not known
    cls: str
    model: str | None
    pool: str  # of its engine; empty where there was none
    engine: str | None
    queue_s: float | None  # from its arrival to its start on an engine
    ttft_s: float | None  # from its arrival to the first byte of the answer's body
    tokens_in: int | None  # real ones: both are known, or neither
    tokens_out: int | None
    cost: int  # of the real tokens
    status: int  # 0: the client left before there was one
    outcome: str
    reason: str | None
