"""The same requests through our model of an engine: what is sent, and what becomes of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fairlane.sim.engine.batching import SimulatedEngine
from fairlane.sim.engine.jobs import Job
from fairlane.sim.engine.model import EngineModel


class Sent(NamedTuple):
    """One request."""

    at: float
    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True)
class Served:
    """What became of it; equal only if every moment is the same to the picosecond."""

    first_token_at: float = 0.0
    ended_at: float = 0.0
    preemptions: int = 0


def play(model: EngineModel, requests: Sequence[Sent]) -> list[Served]:
    """Sends each request at its time to a simulated engine, and returns what became of each; requests stand in order of time."""
    engine = SimulatedEngine(model)
    jobs = [Job(index, sent.prompt_tokens, sent.output_tokens) for index, sent in enumerate(requests)]
    coming = deque(zip(requests, jobs, strict=True))
    while True:
        ends_at = engine.next_event()
        arrives_at = coming[0][0].at if coming else None
        if ends_at is None and arrives_at is None:
            return [Served(job.first_token_at or 0.0, job.ended_at or 0.0, job.preemptions) for job in jobs]
        now = min(at for at in (ends_at, arrives_at) if at is not None)
        engine.advance(now)
        while coming and coming[0][0].at <= now:
            job = coming.popleft()[1]
            if not engine.add(job, now):
                raise ValueError(f"request {job.id} is larger than the KV cache")
