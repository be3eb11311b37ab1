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
        self.kv_most = 0

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
        self.running = [r for r in self.running if r.leaves_at > now]

    def _kv(self) -> int:
        return sum(r.computed for r in self.running)

    def _turn(self, r: Sequence) -> tuple[int, int, int]:
        return (r.priority if self.model.by_priority else 0, r.before, r.id)

    def _preempt(self) -> Sequence:
        victim = max(self.running, key=lambda r: (r.priority, r.id)) if self.model.by_priority else self.running[-1]
        self.running.remove(victim)
        self.preemptions += 1
        victim.computed = 0
        victim.decodes = False
        victim.before = -self.preemptions
        self.waiting.append(victim)
        return victim

    def _step(self) -> None:
        preemptions = self.preemptions
        while self._kv() + sum(r.decodes for r in self.running) > self.model.kv_tokens:
            self._preempt()
        work: list[tuple[Sequence, int]] = []
        prompts = [r for r in self.running if not r.decodes]
        for r in prompts:
            while r in self.running:
                decoding = [q for q in self.running if q.decodes]
                tokens = min(r.to_compute, self.model.step_tokens - len(decoding))
                if self._kv() + len(decoding) + tokens <= self.model.kv_tokens:
                    work.append((r, tokens))
                    break
                self._preempt()
        work = [(r, 1) for r in self.running if r.decodes] + work
        if preemptions == self.preemptions or not self.model.whole_prompts:
            self._admit(work)
        self._do(work)

    def _admit(self, work: list[tuple[Sequence, int]]) -> None:
        while self.waiting and len(self.running) < self.model.running_max:
            planned = sum(tokens for _, tokens in work)
            r = min(self.waiting, key=self._turn)
            tokens = min(r.to_compute, self.model.step_tokens - planned)
            needed = r.to_compute if self.model.whole_prompts else tokens
            if tokens <= 0 or self._kv() + planned + needed > self.model.kv_tokens:
                return
            self.waiting.remove(r)
            self.running.append(r)
            work.append((r, tokens))

    def _do(self, work: list[tuple[Sequence, int]]) -> None:
        prompt = sum(tokens for r, tokens in work if not r.decodes)
        for r, tokens in work:
            r.computed += tokens
        self.kv_most = max(self.kv_most, self._kv())
        self.now += self.model.step_ps(prompt, len(work), self._kv())[0] if work else 0
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
