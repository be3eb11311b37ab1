"""No gateway: what clients send reaches an engine at once. It answers as the scheduler does, so a run can have it instead."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from fairlane.core.request import Request, Start
from fairlane.core.values import Outcome, PriorityClass, State, Usage


class Direct:
    """Every request starts where it arrives, on one engine after the other."""

    def __init__(self, engines: Sequence[str]) -> None:
        self._engines = cycle(engines)
        self._started: list[Start] = []

    def submit(self, request: Request, now: float) -> None:
        """Starts the request."""
        request.state = State.RUNNING
        request.started_at = now
        self._started.append(Start(request, next(self._engines)))

    def poll(self, _: float) -> Sequence[Start]:
        """What was started since the last time."""
        started, self._started = self._started, []
        return started

    def wake_at(self) -> float | None:
        """Nothing waits here."""
        return None

    def cancel(self, request: Request, now: float) -> None:
        """Nothing waits here."""

    def progress(self, request: Request, produced: int, now: float) -> None:
        """Nobody takes note."""

    def settle(self, request: Request, usage: Usage | None, outcome: Outcome, now: float) -> None:
        """Nothing was charged."""

    def depart(self, _: Request) -> bool:
        """No tenant has a limit."""
        return False

    def reconfigure(self, pool: str, classes: Sequence[PriorityClass]) -> None:
        """There are no classes."""
