"""Requests that are over, for tests of what is told of them."""

from dataclasses import dataclass

from fairlane.telemetry.trail import Trail


@dataclass(slots=True)
class Past(Trail):
    """A request of nobody known, which no engine had."""

    request_id: str = "r"
    arrived_at: float = 0.0
    path: str = "/v1/chat/completions"
