"""What a run leaves behind: every attempt of every client, and when something of a class was waiting."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from fairlane.core.request import Request
from fairlane.errors import Reason
from fairlane.predict.asked import Asked, Prediction
from fairlane.sim.engine.jobs import Job
from fairlane.sim.load.workload import Arrival

OUTPUT_WEIGHT = 4  # cost units of an output token; one of a prompt token is 1


class End(StrEnum):
    """How an attempt ended."""

    OPEN = "open"  # it did not before the run did
    COMPLETED = "completed"
    SHED = "shed"
    ABANDONED = "abandoned"  # no first token within the client's patience
    DISCONNECTED = "disconnected"  # in the middle of the answer
    FAILED = "failed"  # the engine could never take it


@dataclass(slots=True, eq=False)
class Attempt:
    """One try of one client to have its request answered."""

    call: int  # the same for all tries of one request
    tries: int  # 1 for the first
    arrival: Arrival
    at: float
    job: Job
    request: Request
    asked: Asked
    prediction: Prediction
    hangs_up_after: int = 0  # output tokens
    engine: int = 0
    started_at: float | None = None
    first_token_at: float | None = None
    ended_at: float | None = None
    end: End = End.OPEN
    reason: Reason | None = None
    retry_after_s: float | None = None  # as the client was told, its random part included
    kept_at: float | None = None  # when the oracle put it back into its place instead of shedding it
    produced: int = 0
    prefilled: int = 0
    yields: int = 0  # how often it gave its place to a more urgent request, with
    vain: int = 0  # so much work of engines, in cost units, done for nothing until then

    @property
    def cost(self) -> int:
        """What its full answer is worth."""
        return self.arrival.prompt_tokens + OUTPUT_WEIGHT * self.arrival.output_tokens

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token, from the moment it was sent."""
        return None if self.first_token_at is None else self.first_token_at - self.at

    def in_time(self, slo_s: float | None) -> bool:
        """Whether it has a first token, and that within the objective."""
        ttft = self.ttft_s
        return ttft is not None and (slo_s is None or ttft <= slo_s)


@dataclass(slots=True)
class Backlog:
    """When requests of one class waited in the gateway, as spans of time."""

    waiting: int = 0
    since: float = 0.0
    spans: list[tuple[float, float]] = field(default_factory=list)

    def change(self, by: int, now: float) -> None:
        """So many more wait now, or fewer. A span that ends and begins again at one moment is one span."""
        before = self.waiting
        self.waiting += by
        if not before and self.waiting:
            joined = bool(self.spans) and self.spans[-1][1] == now
            self.since = self.spans.pop()[0] if joined else now
        elif before and not self.waiting:
            self.spans.append((self.since, now))

    def throughout(self, begin: float, end: float) -> bool:
        """Whether something waited all that time."""
        return any(a <= begin and end <= b for a, b in self._all())

    def at_all(self, begin: float, end: float) -> bool:
        """Whether something waited for a while in that time."""
        return any(max(a, begin) < min(b, end) for a, b in self._all())

    def _all(self) -> list[tuple[float, float]]:
        return [*self.spans, (self.since, math.inf)] if self.waiting else self.spans


@dataclass(slots=True)
class Record:
    """Everything that happened in a run."""

    attempts: list[Attempt]
    backlogs: list[Backlog]
    preemptions: int = 0  # in the scored time, at all engines
