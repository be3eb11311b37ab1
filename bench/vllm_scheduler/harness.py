"""vLLM's own scheduler on a virtual clock: its code decides what a step computes, a cost model says how long the step takes.

There is no worker and no server. The loop is that of vLLM's engine core: `schedule`, run the step, `update_from_output`. Requests
come in between steps, and every answer is as long as it was drawn.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from bench.vllm_scheduler.play import Sent, Served
from fairlane.sim.engine.model import PS_PER_S, EngineModel

TOKENS_MAX = 1_000_000  # of one request: more than any has
HEADS = {"num_key_value_heads": 2, "head_dim": 32}
SMALLEST = HEADS | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": TOKENS_MAX,
}


class Flight(NamedTuple):
    """A step that is decided on; when it ends, the sampled requests have a token more."""

    output: Any
    sampled: frozenset[str]
    ends_at: int


class VllmEngine:
    """Serves requests to their ends. With `ahead` a step is decided on while the one before runs, as async scheduling does."""

    def __init__(self, model: EngineModel, *, ahead: bool = False) -> None:
        self.model = model
        self.preemptions = 0
        self._scheduler = make_scheduler(model, AsyncScheduler if ahead else Scheduler)
        self._hasher = get_request_block_hasher(model.block_tokens, sha256) if model.keep_blocks else None
        self._depth = 2 if ahead else 1
        self._flights: deque[Flight] = deque()
        self._decoding: set[str] = set()
        self._served: list[Served] = []
        self._now = 0

    def play(self, requests: Sequence[Sent]) -> list[Served]:
        """Sends each request at its time, and returns what became of each."""
        self._served = [Served() for _ in requests]
        coming = deque(enumerate(requests))
        while coming or self._scheduler.requests or self._flights:
            if not self._scheduler.requests and not self._flights:
                self._now = max(self._now, math.ceil(coming[0][1].at * PS_PER_S))
            while coming and coming[0][1].at <= self._now / PS_PER_S:
                self._add(*coming.popleft())
            while len(self._flights) < self._depth and self._take_off():
                pass
            if self._flights:
                self._land(self._flights.popleft())
        return self._served

    def _add(self, index: int, sent: Sent) -> None:
        limits = SamplingParams(max_tokens=sent.output_tokens, min_tokens=sent.output_tokens, ignore_eos=True)
        prompt = [index + 1] * sent.prompt_tokens  # no two requests have a prefix in common
        self._scheduler.add_request(Request(str(index), prompt, limits, None, arrival_time=sent.at, block_hasher=self._hasher))

    def _take_off(self) -> bool:
        """Decides on a step; returns False if there is nothing to compute now."""
        scheduler = self._scheduler
        output = scheduler.schedule()
        for name in output.preempted_req_ids or ():
            self.preemptions += 1
            self._served[int(name)].preemptions += 1
            self._decoding.discard(name)
        tokens = output.num_scheduled_tokens
        if not tokens:
            return bool(output.preempted_req_ids)
        prompt = sum(n for name, n in tokens.items() if name not in self._decoding)
        kv = sum(request.num_computed_tokens for request in scheduler.running)
        begins_at = self._flights[-1].ends_at if self._flights else self._now
        ends_at = begins_at + self.model.step_ps(prompt, len(tokens), kv)[0]
        sampled = frozenset(name for name in tokens if not scheduler.requests[name].is_prefill_chunk)
        self._decoding |= sampled
        self._flights.append(Flight(output, sampled, ends_at))
        return True

    def _land(self, flight: Flight) -> None:
        """Ends a step."""
        self._now = flight.ends_at
        names = list(flight.output.num_scheduled_tokens)
        made = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[[0] if name in flight.sampled else [] for name in names],
        )
        by_client = self._scheduler.update_from_output(flight.output, made)
        for output in (output for outputs in by_client.values() for output in outputs.outputs):
            served = self._served[int(output.request_id)]
            served.first_token_at = served.first_token_at or self._now / PS_PER_S
            if output.finish_reason is not None:
                served.ended_at = self._now / PS_PER_S
                self._decoding.discard(output.request_id)


def make_scheduler(model: EngineModel, kind: type[Scheduler], policy: str = "fcfs") -> Scheduler:
    """A scheduler for vLLM with the sizes of `model`; it keeps one block of its cache for itself."""
    blocks = model.kv_tokens // model.block_tokens + 1
    with TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(SMALLEST), encoding="utf-8")
        tiny = ModelConfig(model=folder, skip_tokenizer_init=True, max_model_len=TOKENS_MAX, dtype="float32")
    scheduling = SchedulerConfig(
        max_num_seqs=model.running_max,
        max_num_batched_tokens=model.step_tokens,
        max_model_len=TOKENS_MAX,
        is_encoder_decoder=False,
        enable_chunked_prefill=True,
        scheduler_reserve_full_isl=model.whole_prompts,
        policy=policy,
    )
    cache = CacheConfig(block_size=model.block_tokens, enable_prefix_caching=model.keep_blocks)
    cache.num_gpu_blocks = blocks
    config = VllmConfig(model_config=tiny, scheduler_config=scheduling, cache_config=cache, device_config=DeviceConfig("cpu"))
    kv = FullAttentionSpec(
        block_size=model.block_tokens, num_kv_heads=HEADS["num_key_value_heads"], head_size=HEADS["head_dim"], dtype=torch.float32
    )
    init_none_hash(sha256)
    return kind(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], kv)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=model.block_tokens,
    )
