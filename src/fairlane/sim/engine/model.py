"""What a step of an engine costs, and rows of alike steps with their exact times in integer picoseconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from fairlane.sim.engine.jobs import Job

PS_PER_S = 1_000_000_000_000


@dataclass(frozen=True, slots=True)
class EngineModel:
    """Sizes, rules and step costs of an engine. Sizes and costs are those of the reference workload by default, rules are vLLM's.

    A step takes `step_s + prefill_token_s·(prompt tokens in it) + sequence_s·(sequences in it) + kv_token_s·(KV tokens held)`.
    """

    kv_tokens: int = 160_000
    block_tokens: int = 16  # KV is dealt out in blocks; what is left over of `kv_tokens` is not used
    step_tokens: int = 2048  # decoding sequences and prompt chunks together
    running_max: int = 256
    step_s: float = 9e-3
    prefill_token_s: float = 60e-6
    sequence_s: float = 60e-6
    kv_token_s: float = 60e-9
    by_priority: bool = False  # waiting line and victims by `Job.priority`, lower first, instead of by arrival
    whole_prompts: bool = False  # admit only what fits with all its known tokens
    admits_when_preempting: bool = False  # a step that preempts may admit in the same breath; vLLM's does not
    keep_blocks: bool = False  # who was preempted finds those of its full blocks again that nobody took meanwhile

    def __post_init__(self) -> None:
        if self.running_max >= self.step_tokens:
            raise ValueError("each running sequence must get its token in each step")
        if self.block_tokens < 1:
            raise ValueError("a block holds at least one token")
        if min(self.prefill_token_s, self.sequence_s, self.kv_token_s) < 0 or self.step_s <= 0:
            raise ValueError("a step takes time, and nothing in it gives time back")

    def step_ps(self, prompt: int, sequences: int, kv: int) -> tuple[int, int]:
        """Picoseconds of a step with so many prompt tokens and sequences, which ends with `kv` tokens held; and per KV token."""
        fixed = self.step_s + self.prefill_token_s * prompt + self.sequence_s * sequences
        per_kv = round(self.kv_token_s * PS_PER_S)
        return round(fixed * PS_PER_S) + per_kv * kv, per_kv


REFERENCE_ENGINE = EngineModel(admits_when_preempting=True)  # of the reference workload


class Plan(NamedTuple):
    """Steps in a row that differ only in the KV tokens they read: from `begin`, the first takes `first`, each next `more` longer."""

    begin: int
    steps: int
    first: int
    more: int
    chunks: tuple[tuple[Job, int], ...]

    def end(self, steps: int) -> int:
        """When that many of its steps are done."""
        return self.begin + steps * self.first + self.more * (steps * (steps - 1) // 2)

    def cut(self, now: float) -> Plan:
        """The same, ended at the first step boundary that is not before `now`; after its first step at the earliest."""
        past = max(0.0, now * PS_PER_S - self.begin)
        linear = self.first - self.more / 2
        steps = int(2 * past / (linear + math.sqrt(linear * linear + 2 * self.more * past)))
        while steps > 1 and self.end(steps - 1) / PS_PER_S >= now:
            steps -= 1
        while self.end(max(1, steps)) / PS_PER_S < now:
            steps += 1
        return self._replace(steps=min(self.steps, max(1, steps)))
