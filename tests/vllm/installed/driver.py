"""vLLM's scheduler without a worker: requests of given lengths, step after step, and what came of each step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from bench.vllm_scheduler.harness import make_scheduler
from fairlane.sim.engine.model import EngineModel
from fairlane.vllm_plugin import FairlaneScheduler
from fairlane.vllm_plugin.asked import EngineRequest
from fairlane.vllm_plugin.waiting import WaitingRequests


class Watched(WaitingRequests):
    """Holds that what is taken is what was looked at, and that every look at one line sees the same."""

    def __init__(self) -> None:
        raise TypeError("an existing line becomes one")

    def peek_request(self) -> EngineRequest:
        self.seen = super().peek_request()
        assert super().peek_request() is self.seen
        return self.seen

    def pop_request(self) -> EngineRequest:
        taken = super().pop_request()
        assert taken is self.seen
        return taken


class Step(NamedTuple):
    """Names of the requests that a step admitted, brought back and preempted, in order."""

    admitted: list[str]
    resumed: list[str]
    preempted: set[str]


class Driver:
    """One scheduler, and the loop of vLLM's engine core around it; each answer is as long as its `max_tokens`."""

    def __init__(self, model: EngineModel, kind: type[Scheduler] | None = None, policy: str = "fcfs") -> None:
        self.scheduler = make_scheduler(model, FairlaneScheduler if kind is None else kind, policy)
        if kind is None:
            self.scheduler.waiting.__class__ = Watched
        self.requests: dict[str, Request] = {}
        self.ended: list[str] = []
        self.flights: deque[Any] = deque()

    def add(self, name: str, prompt: int, output: int, *, priority: int = 0, **said: float | str) -> Request:
        """Sends a request; what is named besides goes along as the gateway sends it, the class as `rank`."""
        told = {f"fairlane_{'class' if field == 'rank' else field}": value for field, value in said.items()}
        limits = SamplingParams(max_tokens=output, min_tokens=output, ignore_eos=True, extra_args=told or None)
        tokens = [len(self.requests) + 1] * prompt  # no two have a prefix in common
        request = Request(name, tokens, limits, None, arrival_time=float(len(self.requests)), priority=priority)
        self.requests[name] = request
        self.scheduler.add_request(request)
        return request

    def step(self) -> Step:
        """Decides on a step and runs it."""
        seen = self.take_off()
        self.land()
        return seen

    def take_off(self) -> Step:
        """Decides on a step, as async scheduling does while another may be under way."""
        output = self.scheduler.schedule()
        sampled = {name for name in output.num_scheduled_tokens if not self.requests[name].is_prefill_chunk}
        self.flights.append((output, sampled))
        resumed = [name for name in output.scheduled_cached_reqs.req_ids if name in output.scheduled_cached_reqs.resumed_req_ids]
        return Step([new.req_id for new in output.scheduled_new_reqs], resumed, set(output.preempted_req_ids or ()))

    def land(self) -> None:
        """The oldest step under way has run."""
        output, sampled = self.flights.popleft()
        names = list(output.num_scheduled_tokens)
        made = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[[0] if name in sampled else [] for name in names],
        )
        for outputs in self.scheduler.update_from_output(output, made).values():
            self.ended += [one.request_id for one in outputs.outputs if one.finish_reason is not None]

    def drain(self) -> None:
        """Steps until nothing is left."""
        while self.scheduler.has_unfinished_requests():
            self.step()

    def real_cost(self, names: Iterable[str] | None = None) -> int:
        """What requests have used that ran to an end: a prompt token 1, an output token 4."""
        of = self.requests.values() if names is None else [self.requests[name] for name in names]
        return sum(request.num_prompt_tokens + 4 * request.num_output_tokens for request in of)
