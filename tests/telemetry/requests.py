"""Requests that are over, for tests of what is told of them."""

from typing import Any

from fairlane.telemetry.trail import Trail


def past(request_id: str = "r", arrived_at: float = 0.0, path: str = "/v1/chat/completions", **told: Any) -> Trail:  # noqa: ANN401
    """A request of nobody known, which no engine had, but for what is told of it."""
    return Trail(request_id, arrived_at, path, **told)
