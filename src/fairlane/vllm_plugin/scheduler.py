"""vLLM's scheduler with its line of waiting requests in Fairlane's order. The one module that imports vLLM.

vLLM itself decides what fits: the batch, the KV cache, chunks and preemption are as they were.
"""

import os
from typing import Any

import vllm
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from fairlane.vllm_plugin import configured, gate
from fairlane.vllm_plugin.asked import Asked
from fairlane.vllm_plugin.order import BatchOrder
from fairlane.vllm_plugin.waiting import WaitingRequests

STEPS_BETWEEN_CHARGES = 64  # of what runs beyond its prediction: tokens come one a step, and are charged in steps as large

RequestQueue.register(WaitingRequests)


class FairlaneScheduler(AsyncScheduler):  # type: ignore[misc] # untyped where vLLM is not installed
    """For `--scheduler-cls fairlane.vllm_plugin.FairlaneScheduler`, under vLLM's policy `fcfs`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - vLLM's own arguments
        gate.demand_version(vllm.__version__)
        gate.demand_names({"AsyncScheduler": (AsyncScheduler, gate.METHODS)})
        super().__init__(*args, **kwargs)
        probe = Request("probe", [0], SamplingParams(max_tokens=1), None)
        gate.demand_names(
            {
                "AsyncScheduler": (self, gate.SCHEDULER),
                "Request": (probe, gate.REQUEST),
                "the plugin's RequestQueue": (WaitingRequests, RequestQueue.__abstractmethods__),
            }
        )
        gate.demand_policy(self.policy.value)
        told = configured.read(os.environ)
        self.waiting = WaitingRequests(BatchOrder(told.classes, told.policy), Asked(told).read, told.weights)
        self._steps = 0

    def schedule(self, throttle_prefills: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002 - vLLM's signature
        """Assembles the next step's batch."""
        self._steps += 1
        if self._steps % STEPS_BETWEEN_CHARGES == 0:
            for request in self.running:
                self.waiting.progress(request)
        return super().schedule(throttle_prefills)

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002 - vLLM's signature
        """Every request comes through here once, however it ends."""
        self.waiting.finish(request)
        return super()._free_request(request, delay_free_blocks)
