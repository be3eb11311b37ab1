"""What is compared: engines, and a load on each."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from bench.vllm_scheduler.play import Sent
from fairlane.sim.engine.model import EngineModel
from fairlane.sim.load.workload import REFERENCE


class Case(NamedTuple):
    """Requests of the reference workload, at `load` times its rates, on one engine."""

    name: str
    load: float
    model: EngineModel

    def requests(self, seed: int, count: int) -> list[Sent]:
        """The first so many."""
        rate = math.fsum(tenant.rate_per_s for tenant in REFERENCE.tenants) * self.load
        arrivals = REFERENCE.arrivals(self.load, seed, 2 * count / rate)
        return [Sent(a.at, a.prompt_tokens, a.output_tokens) for a in arrivals[:count]]


_SCARCE = EngineModel(kv_tokens=60_000, whole_prompts=True)
CASES = {
    "ample": Case("KV is ample", 0.4, replace(_SCARCE, kv_tokens=320_000)),
    "scarce": Case("KV is scarce", 0.4, _SCARCE),
    "kept": Case("scarce, blocks kept", 0.4, replace(_SCARCE, keep_blocks=True)),
    "default": Case("the reference workload's sizes", 0.4, EngineModel()),
}
RECORDED = {
    "whole_prompts": CASES["scarce"],
    "first_chunks": Case("first chunks", 0.4, replace(_SCARCE, whole_prompts=False)),
    "kept_blocks": Case("blocks kept", 0.4, replace(_SCARCE, whole_prompts=False, keep_blocks=True)),
}
