"""What vLLM's scheduler does with its waiting requests, in a few lines: it takes, sets aside, preempts and ends."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from fairlane.vllm_plugin import configured
from fairlane.vllm_plugin.asked import Asked
from fairlane.vllm_plugin.order import BatchOrder
from fairlane.vllm_plugin.waiting import WaitingRequests

_ids = count(1)


@dataclass
class Params:
    """vLLM's sampling parameters, as far as they are read."""

    extra_args: dict[str, Any] | None


@dataclass
class Stats:
    """vLLM's statistics of a prefill, as far as they are read."""

    num_cached_tokens: int = 0


@dataclass(eq=False)
class FakeRequest:
    """A request of vLLM, as far as it is read."""

    num_prompt_tokens: int = 100
    max_tokens: int = 25
    sampling_params: Params | None = None
    priority: int = 0
    arrival_time: float = 0.0
    request_id: str = field(default_factory=lambda: f"cmpl-{next(_ids)}")
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    prefill_stats: Stats | None = field(default_factory=Stats)

    def runs(self, output: int) -> None:
        """Its prompt is computed, and so much was produced."""
        self.num_computed_tokens = self.num_prompt_tokens + output
        self.num_output_tokens = output


def asking(rank: int, tenant: str = "t", **rest: Any) -> FakeRequest:  # noqa: ANN401 - whatever a client may send
    """A request of a class and a tenant; a name that vLLM knows is a field of it, any other is sent along."""
    known = {name: rest.pop(name) for name in list(rest) if name in FakeRequest.__dataclass_fields__}
    extra = {"fairlane_class": rank, "fairlane_tenant": tenant} | {f"fairlane_{name}": value for name, value in rest.items()}
    return FakeRequest(sampling_params=Params(extra), **known)


def line(environ: Mapping[str, str] | None = None) -> WaitingRequests:
    """An empty line, configured by such an environment."""
    told = configured.read(environ or {})
    return WaitingRequests(BatchOrder(told.classes, told.policy), Asked(told).read, told.weights)


class Batch:
    """So many places, refilled from a line; requests end in random order. `started` tells what was taken, in order."""

    def __init__(self, waiting: WaitingRequests, depth: int, seed: int) -> None:
        self.waiting = waiting
        self.depth = depth
        self.random = random.Random(seed)
        self.running: list[FakeRequest] = []
        self.started: list[FakeRequest] = []

    def fill(self) -> None:
        """Takes while there is a place."""
        while len(self.running) < self.depth and self.waiting:
            first = self.waiting.peek_request()
            taken = self.waiting.pop_request()
            assert taken is first
            assert isinstance(taken, FakeRequest)
            self.running.append(taken)
            self.started.append(taken)

    def end(self, output: int) -> FakeRequest:
        """One of them ends, having produced so much."""
        request = self.random.choice(self.running)
        self.end_of(request, output)
        return request

    def end_of(self, request: FakeRequest, output: int) -> None:
        """This one ends."""
        self.running.remove(request)
        request.runs(output)
        self.waiting.finish(request)
