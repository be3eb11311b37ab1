"""Continuous batching with chunked prefill and a limited KV cache.

A step gives every decoding sequence one token, then fills what is left of the token budget with prompt chunks: first the
prompt that is under way, then waiting requests in order while their chunks fit into free KV. The step that completes a
prompt emits the first token. A sequence holds one KV token for each prompt token computed and each output token but the last,
in blocks that are its own. When a step needs a block that is not there, the sequence admitted last is *preempted*: it loses its
KV and goes back to the head of the waiting line with all its tokens, produced ones too, to be prefilled again; such a step admits
nothing, unless `admits_when_preempting`. An engine offered more than its KV can hold so spends its time on prompts that it throws
away; `whole_prompts` is the remedy that is the default of vLLM V1 now. These are vLLM's rules, and `docs/simulator-vllm.md` says
how far they are.

Between two events all steps are alike: the same sequences gain a token each. Their total time is an arithmetic series, so a
run of them is one plan with an exact end, cut at a step boundary if something arrives meanwhile. Time is counted in integer
picoseconds, which makes the plan equal to its steps one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count

from fairlane.sim.engine.blocks import Blocks
from fairlane.sim.engine.jobs import Event, Job, Line, Place, What
from fairlane.sim.engine.model import PS_PER_S, EngineModel, Plan


class SimulatedEngine:
    """One engine. Call `advance(now)` before anything else that happens at `now`; time never runs backwards.

    What is added at the moment when a step ends takes part in the next step. Counters are as of the last event reported.
    """

    def __init__(self, model: EngineModel) -> None:
        self.model = model
        self.running = 0  # requests that hold KV, or will by the end of the step under way
        self.kv_used = 0
        self.preemptions = 0
        self.prefilled_tokens = 0
        self.decoded_tokens = 0
        self._slowdown = 1
        self._blocks = Blocks(model.kv_tokens, model.block_tokens, keep=model.keep_blocks)
        self._line = Line(by_priority=model.by_priority)
        self._decoding: dict[Job, None] = {}  # in order of admission
        self._prefilling: Job | None = None  # at most one prompt is left half done by a step, and it is the one admitted last
        self._leaving: list[Job] = []
        self._round = 0  # steps in which the decoding sequences gained a token
        self._marks: list[tuple[int, int, Job, int]] = []  # (round, tie, job, stamp), ends and watched tokens
        self._ties = count()
        self._at = 0  # the last step boundary
        self._plan: Plan | None = None

    @property
    def waiting(self) -> int:
        """Requests that hold no KV yet, or lost it."""
        return len(self._line)

    def add(self, job: Job, now: float) -> bool:
        """Puts a request into the waiting line. Returns False, and takes nothing, if it could never fit into the KV cache."""
        if self._blocks.of(job.prompt_tokens + job.output_tokens - 1) > self._blocks.total:
            return False
        if not self.running and not self._line:
            self._at = max(self._at, math.ceil(now * PS_PER_S))
        self._line.push(job)
        self._cut(now)
        return True

    def abort(self, job: Job, now: float) -> None:
        """Forgets a waiting request at once, a running one when the present step ends."""
        if job.place is Place.WAITING:
            self._line.remove(job)
            job.place = Place.GONE
        elif job.place is Place.RUNNING:
            self._leaving.append(job)
        self._cut(now)  # also for a waiting one: the next in line may fit where it did not

    def watch(self, job: Job, produced: int) -> None:
        """Reports `What.PRODUCED` once when the request has produced that many tokens; replaces an earlier wish.

        To be called before the request is added or at the moment of one of its events, when no step is under way.
        """
        job.watched = produced
        if job.end_round:
            self._mark(job, job.end_round - (job.output_tokens - produced))

    def produced(self, job: Job) -> int:
        """Output tokens of the request up to the last event reported."""
        return job.output_tokens - (job.end_round - self._round) if job.end_round else job.produced

    def produced_by(self, job: Job, now: float) -> int:
        """The same until now, the step under way counted as done."""
        under_way = self._plan.cut(now).steps if self._plan is not None and job.end_round else 0
        return self.produced(job) + under_way

    def slow_down(self, factor: int, now: float) -> None:
        """Makes the steps that begin from now on take `factor` times as long."""
        self._cut(now)
        self._slowdown = factor

    def next_event(self) -> float | None:
        """When `advance` may have something to report if nothing else happens; None for an idle engine."""
        plan = self._plan = self._plan or self._make_plan()
        return plan.end(plan.steps) / PS_PER_S if plan else None

    def advance(self, now: float) -> list[Event]:
        """Carries out all steps that end by `now` and returns what they brought, in order."""
        events: list[Event] = []
        while self._at / PS_PER_S < now or self._plan is not None:
            plan = self._plan = self._plan or self._make_plan()
            if plan is None or plan.end(plan.steps) / PS_PER_S > now:
                break
            self._plan = None
            events.extend(self._carry_out(plan))
        return events

    def _cut(self, now: float) -> None:
        """Ends a run of alike steps at the first boundary that is not before `now`."""
        if self._plan is not None and self._plan.steps > 1:
            self._plan = self._plan.cut(now)

    def _carry_out(self, plan: Plan) -> Iterator[Event]:
        self._at = plan.end(plan.steps)
        self._blocks.grow(self._round + 1, plan.steps - 1)
        gained = plan.steps * len(self._decoding)
        self._round += plan.steps
        self.kv_used += gained
        self.decoded_tokens += gained
        at = self._at / PS_PER_S
        while self._marks and self._marks[0][0] <= self._round:
            _, _, job, stamp = heappop(self._marks)
            if stamp == job.stamp and job.place is Place.RUNNING:
                yield from self._reach(job, at)
        for job, tokens in plan.chunks:
            yield from self._prefill(job, tokens, at)

    def _reach(self, job: Job, at: float) -> Iterator[Event]:
        if job.end_round <= self._round:
            self._decoding.pop(job)
            self._blocks.leave(job)
            yield self._end(job, at)
        elif job.watched and self.produced(job) >= job.watched:
            job.watched = 0
            yield Event(at, What.PRODUCED, job)

    def _prefill(self, job: Job, tokens: int, at: float) -> Iterator[Event]:
        self.kv_used += tokens
        self.prefilled_tokens += tokens
        job.prefilled_tokens += tokens
        job.to_prefill -= tokens
        if job.to_prefill:
            self._prefilling = job
            return
        self._prefilling = None if self._prefilling is job else self._prefilling
        job.produced += 1
        self.decoded_tokens += 1
        if job.first_token_at is None:
            job.first_token_at = at
            yield Event(at, What.FIRST_TOKEN, job)
        if job.produced == job.output_tokens:
            yield self._end(job, at)
            return
        self._decoding[job] = None
        job.end_round = self._round + job.output_tokens - job.produced
        self._blocks.enter(job)
        self._mark(job, job.end_round)
        if job.watched:
            self._mark(job, job.end_round - (job.output_tokens - job.watched))

    def _end(self, job: Job, at: float) -> Event:
        self.kv_used -= job.prompt_tokens + job.output_tokens - 1
        self._blocks.give_back(job.prompt_tokens + job.output_tokens - 1)
        self.running -= 1
        job.produced = job.output_tokens
        job.end_round = 0
        job.place = Place.GONE
        job.ended_at = at
        return Event(at, What.ENDED, job)

    def _mark(self, job: Job, at_round: int) -> None:
        heappush(self._marks, (at_round, next(self._ties), job, job.stamp))

    def _make_plan(self) -> Plan | None:
        """What the next step computes, and how many like it follow if nothing arrives."""
        while self._leaving:
            self._drop(self._leaving.pop())
        before = self.preemptions
        chunks = self._chunks()
        preempted = self.preemptions > before
        if self.model.admits_when_preempting or not preempted:
            chunks += self._admit(self.model.step_tokens - len(self._decoding) - sum(tokens for _, tokens in chunks))
        decoding = len(self._decoding)
        if not decoding and not chunks:
            return self._make_plan() if self._line else None
        prompt = sum(tokens for _, tokens in chunks)
        first, per_kv = self.model.step_ps(prompt, decoding + len(chunks), self.kv_used + decoding + prompt)
        steps = 1 if chunks or preempted else self._alike()
        return Plan(self._at, steps, first * self._slowdown, per_kv * decoding * self._slowdown, tuple(chunks))

    def _alike(self) -> int:
        """How many steps of decoding alone pass before one ends, is watched, or finds no KV."""
        while self._marks[0][3] != self._marks[0][2].stamp:
            heappop(self._marks)
        return 1 + max(0, self._blocks.last(self._round + 1, self._marks[0][0] - self._round - 1))

    def _chunks(self) -> list[tuple[Job, int]]:
        """Takes blocks for the decoding sequences and for the prompt under way; returns that prompt's chunk."""
        blocks = self._blocks
        while blocks.due(self._round) > blocks.free:
            self._preempt(0)
        blocks.grow(self._round, 1)
        job = self._prefilling
        while job is not None and job is self._prefilling:
            tokens = min(job.to_prefill, self.model.step_tokens - len(self._decoding))
            held = job.prompt_tokens + job.produced - job.to_prefill
            if (more := blocks.of(held + tokens) - blocks.of(held)) <= blocks.free:
                blocks.take(more)
                return [(job, tokens)]
            self._preempt(1)
        return []

    def _admit(self, budget: int) -> list[tuple[Job, int]]:
        """Takes requests from the waiting line while tokens, places and KV are left."""
        admitted: list[tuple[Job, int]] = []
        blocks = self._blocks
        while self._line and budget > 0 and self.running < self.model.running_max:
            job = self._line.first()
            found = blocks.found(job) * blocks.size
            tokens = min(job.to_prefill - found, budget)
            if blocks.of(job.to_prefill if self.model.whole_prompts else found + tokens) > blocks.free:
                break
            blocks.reclaim(job)
            blocks.take(blocks.of(tokens))
            self.kv_used += found
            self._line.remove(job)
            job.place = Place.RUNNING
            job.admitted_at = self._at / PS_PER_S if job.admitted_at is None else job.admitted_at
            job.to_prefill -= found
            admitted.append((job, tokens))
            budget -= tokens
            self.running += 1
        return admitted

    def _preempt(self, ahead: int) -> None:
        """Sends a running request back to the waiting line; decoding sequences have KV for `ahead` tokens more than they hold."""
        job = self._victim()
        self._drop(job, ahead)
        self.preemptions += 1
        job.preemptions += 1
        job.place = Place.WAITING
        self._line.push_back(job)

    def _victim(self) -> Job:
        """The running request admitted last, or the least urgent; a prompt under way was admitted after all that decode."""
        if self.model.by_priority:
            running = [*self._decoding] if self._prefilling is None else [*self._decoding, self._prefilling]
            return max(running, key=lambda job: (job.priority, job.id))
        return next(reversed(self._decoding)) if self._prefilling is None else self._prefilling

    def _drop(self, job: Job, ahead: int = 0) -> None:
        """Takes a running request out with all its KV; what it has produced stays known."""
        if job.place is not Place.RUNNING:
            return
        job.produced = self.produced(job)
        held = job.prompt_tokens + job.produced - (1 if job.end_round else job.to_prefill)
        self.kv_used -= held
        self._blocks.give_back(held, ahead if job.end_round else 0, job)
        self.running -= 1
        if job in self._decoding:
            del self._decoding[job]
            self._blocks.leave(job)
        self._prefilling = None if self._prefilling is job else self._prefilling
        job.end_round = 0
        job.stamp += 1
        job.to_prefill = job.prompt_tokens + job.produced
        job.place = Place.GONE
