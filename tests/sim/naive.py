"""An engine that does one step after the other and recounts everything each time: what the real model is compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fairlane.sim.engine.model import PS_PER_S, EngineModel

Seen = tuple[float, str, int]  # when, what, which request


@dataclass(eq=False)
class Sequence:
    id: int
    prompt: int
    output: int
    priority: int
    at: float
    leaves_at: float
    produced: int = 0
    computed: int = 0
    blocks: int = 0
    decodes: bool = False  # its prompt, and what it had produced before a preemption, is computed
    before: int = 1  # place in the waiting line: preempted requests come back below 0

    @property
    def to_compute(self) -> int:
        """One for a decoding sequence, more for a prompt."""
        return self.prompt + self.produced - self.computed


class NaiveEngine:
    """Plays a list of requests to the end and notes what happens."""

    def __init__(self, model: EngineModel, requests: list[Sequence]) -> None:
        self.model = model
        self.coming = sorted(requests, key=lambda r: (r.at, r.id))
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []  # by admission
        self.now = 0
        self.seen: list[Seen] = []
        self.preemptions = 0
        self.blocks_most = 0
        self.free: list[tuple[int, int] | None] = [None] * (model.kv_tokens // model.block_tokens)  # what a block still holds

    def play(self) -> None:
        while self.coming or self.waiting or self.running:
            self._let_in()
            if self.waiting or self.running:
                self._step()
            elif self.coming:
                self.now = max(self.now, math.ceil(self.coming[0].at * PS_PER_S))

    def _let_in(self) -> None:
        now = self.now / PS_PER_S
        while self.coming and self.coming[0].at <= now:
            self.waiting.append(self.coming.pop(0))
        self.waiting = [r for r in self.waiting if r.leaves_at > now]
        for r in [r for r in self.running if r.leaves_at <= now]:
            self.running.remove(r)
            self._give_back(r)

    def _blocks(self, work: list[tuple[Sequence, int]]) -> int:
        """Blocks held once this is done; whoever only waits for its next chunk keeps what it has."""
        more = dict(work)
        return sum(self._blocks_of(r, more.get(r, 0)) for r in self.running)

    def _blocks_of(self, r: Sequence, more: int) -> int:
        return math.ceil((r.computed + more) / self.model.block_tokens)

    def _fits(self, work: list[tuple[Sequence, int]]) -> bool:
        return self._blocks(work) <= self.model.kv_tokens // self.model.block_tokens

    def _take(self, r: Sequence, blocks: int) -> None:
        """Brings a sequence to so many blocks."""
        del self.free[: blocks - r.blocks]
        r.blocks = blocks

    def _give_back(self, r: Sequence) -> None:
        """Blank blocks come first in line, full ones last, and of those the last of the sequence first."""
        full = r.computed // self.model.block_tokens if self.model.keep_blocks else 0
        self.free = [None] * (r.blocks - full) + self.free + [(r.id, index) for index in reversed(range(full))]
        r.blocks = r.computed = 0

    def _find(self, r: Sequence) -> int:
        """How many tokens at the beginning of a sequence are still in free blocks."""
        blocks = 0
        while (r.id, blocks) in self.free:
            blocks += 1
        return blocks * self.model.block_tokens

    def _turn(self, r: Sequence) -> tuple[int, int, int]:
        return (r.priority if self.model.by_priority else 0, r.before, r.id)

    def _preempt(self) -> Sequence:
        victim = max(self.running, key=lambda r: (r.priority, r.id)) if self.model.by_priority else self.running[-1]
        self.running.remove(victim)
        self.preemptions += 1
        self._give_back(victim)
        victim.decodes = False
        victim.before = -self.preemptions
        self.waiting.append(victim)
        return victim

    def _decodes(self) -> list[tuple[Sequence, int]]:
        return [(r, 1) for r in self.running if r.decodes]

    def _step(self) -> None:
        preemptions = self.preemptions
        while not self._fits(self._decodes()):
            self._preempt()
        for r, _ in self._decodes():
            self._take(r, self._blocks_of(r, 1))
        work: list[tuple[Sequence, int]] = []
        for r in [r for r in self.running if not r.decodes]:
            while r in self.running:
                chunk = (r, min(r.to_compute, self.model.step_tokens - len(self._decodes())))
                if self._fits([*self._decodes(), *work, chunk]):
                    work.append(chunk)
                    self._take(r, self._blocks_of(*chunk))
                    break
                self._preempt()
        work = self._decodes() + work
        if self.model.admits_when_preempting or preemptions == self.preemptions:
            self._admit(work)
        self._do(work)

    def _admit(self, work: list[tuple[Sequence, int]]) -> None:
        while self.waiting and len(self.running) < self.model.running_max:
            r = min(self.waiting, key=self._turn)
            r.computed = self._find(r)
            tokens = min(r.to_compute, self.model.step_tokens - sum(tokens for _, tokens in work))
            self.running.append(r)
            if tokens <= 0 or not self._fits([*work, (r, r.to_compute if self.model.whole_prompts else tokens)]):
                self.running.pop()
                r.computed = 0
                return
            self.waiting.remove(r)
            for index in range(r.computed // self.model.block_tokens):
                self.free.remove((r.id, index))
                r.blocks += 1
            self._take(r, self._blocks_of(r, tokens))
            work.append((r, tokens))

    def _do(self, work: list[tuple[Sequence, int]]) -> None:
        prompt = sum(tokens for r, tokens in work if not r.decodes)
        for r, tokens in work:
            r.computed += tokens
        self.blocks_most = max(self.blocks_most, self._blocks([]))
        assert self._blocks([]) + len(self.free) == self.model.kv_tokens // self.model.block_tokens
        self.now += self.model.step_ps(prompt, len(work), sum(r.computed for r in self.running))[0] if work else 0
        at = self.now / PS_PER_S
        for r, _ in work:
            if r.to_compute == 0:
                r.produced += 1
                r.decodes = True
                if r.produced == 1:
                    self.seen.append((at, "FIRST_TOKEN", r.id))
                if r.produced == r.output:
                    self.seen.append((at, "ENDED", r.id))
                    self.running.remove(r)
                    self._give_back(r)
