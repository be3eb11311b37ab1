"""Requests that are over, for tests of what is told of them."""

from dataclasses import dataclass

from fairlane.telemetry.ended import Ended


@dataclass
class Past(Ended):
    """A request of nobody known, which no engine had."""

    request_id: str = "r"
    path: str = "/v1/chat/completions"
    caller: str = ""
    cls: str = "none"
    model: str | None = None
    pool: str = ""
    engine: str | None = None
    queue_s: float | None = None
    ttft_s: float | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost: int = 0
    status: int = 0
    outcome: str = "invalid"
    reason: str | None = None
