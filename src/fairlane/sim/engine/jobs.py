"""Requests as an engine model sees them, the line they wait in, and what the model reports of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from heapq import heappop, heappush
from typing import Any, NamedTuple


class Place(Enum):
    """Where in its engine a request is."""

    WAITING = auto()
    RUNNING = auto()
    GONE = auto()


@dataclass(slots=True, eq=False)
class Job:
    """One request at an engine. The first block is given, the second is the engine's; times are None until they come."""

    id: int  # grows with arrival
    prompt_tokens: int
    output_tokens: int  # at least 1
    priority: int = 0
    owner: Any = None  # whatever the caller wants to find again

    place: Place = Place.WAITING
    to_prefill: int = 0  # known tokens whose KV is still to be computed
    produced: int = 0  # output tokens before the present stretch of decoding
    prefilled_tokens: int = 0  # prompt work done, again after a preemption included
    preemptions: int = 0
    admitted_at: float | None = None
    first_token_at: float | None = None
    ended_at: float | None = None
    end_round: int = 0  # the engine's round in which its last token comes; 0 while it is not decoding
    watched: int = 0
    stamp: int = 0  # grows when earlier marks become void

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ValueError("a request has at least one token of prompt and one of answer")
        self.to_prefill = self.prompt_tokens


class What(Enum):
    """What happened to a request."""

    FIRST_TOKEN = auto()
    PRODUCED = auto()  # the watched number of tokens
    ENDED = auto()


class Event(NamedTuple):
    """Something that a step brought about, at the end of that step."""

    at: float
    what: What
    job: Job


class Line:
    """The waiting line of an engine: by arrival, or by priority and then arrival. Preempted requests come back to its head."""

    __slots__ = ("_back", "_by_priority", "_heap", "_in", "_ties")

    def __init__(self, *, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._heap: list[tuple[int, int, Job]] = []
        self._in: dict[Job, int] = {}  # the tie of its one valid entry
        self._ties = 0
        self._back = 0

    def __len__(self) -> int:
        return len(self._in)

    def push(self, job: Job) -> None:
        """Adds a new request."""
        self._ties += 1
        self._enter(job, self._ties)

    def push_back(self, job: Job) -> None:
        """Adds a preempted request, before all others of its priority."""
        self._back -= 1
        self._enter(job, self._back)

    def first(self) -> Job:
        """The request whose turn it is; only for a line that is not empty."""
        while self._in.get(self._heap[0][2]) != self._heap[0][1]:
            heappop(self._heap)
        return self._heap[0][2]

    def remove(self, job: Job) -> None:
        """Takes a request out."""
        del self._in[job]

    def _enter(self, job: Job, tie: int) -> None:
        self._in[job] = tie
        heappush(self._heap, (job.priority if self._by_priority else 0, tie, job))
