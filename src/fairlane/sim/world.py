"""The event loop that joins clients, the scheduler and engines in virtual time.

At each moment engines report first, then clients act, then the scheduler is polled, as often as its decisions bring something
new. What a decision starts at the end of an engine's step takes part in the next step.

In an *oracle* run a random part of the requests that the scheduler sheds is kept instead: put back where it stood, with no
deadline. Whether its first token then comes in time tells whether the shed was false, in the very state it was decided in.
The part is small, so what is kept hardly changes what the others see.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count

from fairlane.core.request import Request, Shed, Start
from fairlane.core.scheduler import Scheduler
from fairlane.core.values import Outcome, State, Tenant, Usage
from fairlane.errors import RULES
from fairlane.policies.yielding import Yielding
from fairlane.predict.asked import Asked
from fairlane.predict.short import ShortRequests
from fairlane.sim.agenda import Agenda
from fairlane.sim.attempts import OUTPUT_WEIGHT, Attempt, Backlog, End, Record
from fairlane.sim.control import TICK_S, Controlled, controllers
from fairlane.sim.direct import Direct
from fairlane.sim.engine.batching import SimulatedEngine
from fairlane.sim.engine.jobs import Event, Job, What
from fairlane.sim.forecast import MODEL, Forecaster
from fairlane.sim.load.workload import CLASSES, Arrival
from fairlane.sim.setup import (
    LANE_INPUT,
    LANE_OUTPUT,
    NO_GATEWAY,
    POOL,
    TENANT_WEIGHT,
    TTFT_SLO_S,
    Setup,
    classes,
    engine_name,
    engine_specs,
    make_scheduler,
)

PROGRESS_STEP = 64  # output tokens after which the scheduler hears of a request again


def run(setup: Setup, on_time: Callable[[float], None] = lambda _: None) -> Record:
    """Plays a whole run; `on_time` is told the virtual time now and then."""
    world = World(setup)
    world.play(on_time)
    return world.record


class World:
    """All state of a run."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.now = 0.0
        self._names = {engine_name(i): i for i in range(setup.engines)}
        self.scheduler: Scheduler | Direct = Direct([*self._names]) if setup.policy == NO_GATEWAY else make_scheduler(setup)
        self.engines = [SimulatedEngine(setup.model) for _ in range(setup.engines)]
        self.record = Record([], [Backlog() for _ in CLASSES])
        self._rng = random.Random(f"{setup.seed}/clients")  # noqa: S311 - no secret
        self._oracle_rng = random.Random(f"{setup.seed}/oracle")  # noqa: S311 - no secret
        forecast_rng = random.Random(f"{setup.seed}/forecast")  # noqa: S311 - no secret
        self._forecaster = Forecaster(setup.forecast, setup.forecast_error, forecast_rng)
        self._yielding: Yielding | None = None
        if setup.yield_waste and isinstance(self.scheduler, Scheduler):
            self._yielding = Yielding(self.scheduler.pools[POOL], setup.yield_waste)
        self._short = ShortRequests(LANE_INPUT, LANE_OUTPUT) if setup.fast_lane else None
        self._tenants: dict[tuple[str, int], Tenant] = {}
        self._open: dict[int, Attempt] = {}  # by id of the request at the scheduler
        self._ids = count(1)
        self._calls = count()
        self._agenda = Agenda()
        self._arrivals = iter(setup.source.arrivals(setup.load, setup.seed, setup.until_s))
        self._expect_arrival()
        for phase in setup.brownouts:
            self._agenda.put(phase.begin_s, partial(self._slow_down, int(phase.factor)))
            self._agenda.put(phase.end_s, partial(self._slow_down, 1))
        if setup.last_there is not None:
            comes, goes = setup.last_there
            for at, there in ((0.0, False), (comes, True), (goes, False)):
                self._agenda.put(at, partial(self._staff, last=there))
        if setup.adaptive and isinstance(self.scheduler, Scheduler):
            self._control(controllers(self.scheduler, POOL, self.engines))
        self._agenda.put(setup.warmup_s, partial(self._count_preemptions, -1))
        self._agenda.put(setup.scored_until_s, partial(self._count_preemptions, 1))

    def play(self, on_time: Callable[[float], None]) -> None:
        """Lets everything happen that happens before the run's end."""
        while (now := self._next_time()) <= self.setup.until_s:
            self.now = now
            before = len(self.record.attempts)
            moved = False
            for engine in self.engines:
                for event in engine.advance(now):
                    self._on_event(event)
                    moved = True
            for call in self._agenda.due(now):
                call()
                moved = True
            if moved or self._scheduler_wakes_at() <= now:
                self._carry_out()
            if len(self.record.attempts) & 127 < before & 127:
                on_time(now)
        self.now = self.setup.until_s
        for attempt in self._open.values():
            self._measure(attempt)

    def _next_time(self) -> float:
        times = [time for engine in self.engines if (time := engine.next_event()) is not None]
        return min(self._agenda.next(), self._scheduler_wakes_at(), *times)

    def _scheduler_wakes_at(self) -> float:
        wakes_at = self.scheduler.wake_at()
        return float("inf") if wakes_at is None else max(wakes_at, self.now)

    def _expect_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is not None:
            self._agenda.put(arrival.at, partial(self._arrive, arrival))

    def _arrive(self, arrival: Arrival) -> None:
        self._attempt(arrival, next(self._calls), 1)
        self._expect_arrival()

    def _attempt(self, arrival: Arrival, call: int, tries: int) -> None:
        asked = Asked(arrival.tenant, MODEL, arrival.rank, prompt_tokens=arrival.prompt_tokens)
        said = self._forecaster.predict(asked, arrival.output_tokens)
        request = Request(
            id=next(self._ids),
            tenant=self._tenant(arrival),
            pool=POOL,
            rank=arrival.rank,
            model=MODEL,
            prompt_tokens=arrival.prompt_tokens,
            output_tokens=said.mean,
            limit_tokens=arrival.prompt_tokens + said.mean,
            longest_prompt=arrival.prompt_tokens,
            max_tokens=arrival.prompt_tokens + said.mean,
            arrived_at=self.now,
            upper_tokens=said.upper,
            short=self._short is not None
            and arrival.rank < len(CLASSES) - 1
            and self._short.is_short(asked, arrival.prompt_tokens, cap=None, choices=1),
        )
        job = Job(request.id, arrival.prompt_tokens, arrival.output_tokens, arrival.rank)
        hangs_up_after = self.setup.clients.hangs_up_after(arrival.output_tokens, self._rng)
        attempt = job.owner = Attempt(call, tries, arrival, self.now, job, request, asked, said, hangs_up_after)
        self.record.attempts.append(attempt)
        self._open[request.id] = attempt
        patience = self.setup.clients.patience_s[arrival.rank]
        if patience is not None:
            self._agenda.put(self.now + patience, partial(self._lose_patience, attempt))
        self._count(attempt, 1)
        self.scheduler.submit(request, self.now)

    def _tenant(self, arrival: Arrival) -> Tenant:
        tenant = self._tenants.get((arrival.tenant, arrival.rank))
        if tenant is None:
            tenant = Tenant(f"{arrival.tenant}/{CLASSES[arrival.rank]}", weight=TENANT_WEIGHT[arrival.rank])
            self._tenants[arrival.tenant, arrival.rank] = tenant
        return tenant

    def _carry_out(self) -> None:
        """Does what the scheduler decides, until it has no more to decide."""
        while (decisions := self.scheduler.poll(self.now)) or self._yields():
            for decision in decisions:
                attempt = self._open[decision.request.id]
                if isinstance(decision, Start):
                    self._count(attempt, -1)
                    self._start(attempt, self._names[decision.engine])
                elif self._keeps(attempt, decision):
                    self._keep(attempt)
                else:
                    self._shed(attempt, decision)

    def _yields(self) -> bool:
        """Whether a batch request gave its place away. Batch clients are taken to read answers whole: while one runs they have nothing."""
        yielding = self._yielding
        chosen = None if yielding is None else yielding.choose(self._made, self.now)
        if yielding is None or chosen is None or not isinstance(self.scheduler, Scheduler):
            return False
        request = chosen.request
        attempt = self._open[request.id]
        self.engines[attempt.engine].abort(attempt.job, self.now)
        attempt.yields += 1
        attempt.vain += request.prompt_tokens + OUTPUT_WEIGHT * (chosen.tokens - request.prompt_tokens)
        attempt.job = Job(request.id, request.prompt_tokens, attempt.arrival.output_tokens, request.rank, attempt)
        attempt.started_at = attempt.first_token_at = request.first_token_at = None
        self._count(attempt, 1)
        self.scheduler.requeue(request)
        yielding.waits(request)
        return True

    def _made(self, request: Request, now: float) -> int:
        attempt = self._open[request.id]
        return self.engines[attempt.engine].produced_by(attempt.job, now)

    def _start(self, attempt: Attempt, engine: int) -> None:
        if self._yielding is not None:
            self._yielding.started(attempt.request)
        attempt.started_at = self.now
        attempt.engine = engine
        attempt.job.watched = attempt.hangs_up_after
        if not self.engines[engine].add(attempt.job, self.now):
            self._finish(attempt, End.FAILED, Outcome.FAILED)

    def _shed(self, attempt: Attempt, decision: Shed) -> None:
        attempt.reason = decision.reason
        if decision.retry_after_s is not None:
            attempt.retry_after_s = decision.retry_after_s + self._rng.uniform(0.0, decision.jitter_s)
        self._count(attempt, -1)
        self._close(attempt, End.SHED)
        self._retry(attempt)

    def _keeps(self, attempt: Attempt, decision: Shed) -> bool:
        if attempt.kept_at is not None:
            return True
        slo = TTFT_SLO_S[attempt.arrival.rank]
        undone = self.setup.kept_ratio > 0 and slo is not None and RULES[decision.reason].retryable
        return undone and self._oracle_rng.random() < self.setup.kept_ratio

    def _keep(self, attempt: Attempt) -> None:
        attempt.kept_at = self.now if attempt.kept_at is None else attempt.kept_at
        del self._open[attempt.request.id]
        attempt.request = replace(attempt.request, id=next(self._ids), state=State.NEW)
        self._open[attempt.request.id] = attempt
        self.scheduler.reconfigure(POOL, classes(shed=False, max_queued=1_000_000))
        self.scheduler.submit(attempt.request, self.now)
        self.scheduler.reconfigure(POOL, classes(shed=self.setup.shed))

    def _on_event(self, event: Event) -> None:
        attempt: Attempt = event.job.owner
        if attempt.end is not End.OPEN or event.job is not attempt.job:
            return  # the client left, or the request gave way, while the step was under way
        if event.what is What.ENDED:
            self._finish(attempt, End.COMPLETED, Outcome.COMPLETED)
            return
        produced = self.engines[attempt.engine].produced(event.job)
        if event.what is What.FIRST_TOKEN:
            attempt.first_token_at = event.at
        self.scheduler.progress(attempt.request, produced, self.now)
        if produced == attempt.hangs_up_after:
            self.engines[attempt.engine].abort(event.job, self.now)
            self._finish(attempt, End.DISCONNECTED, Outcome.CANCELLED)
            return
        mark = produced // PROGRESS_STEP * PROGRESS_STEP + PROGRESS_STEP
        if produced < attempt.hangs_up_after < mark:
            mark = attempt.hangs_up_after
        if mark < event.job.output_tokens:
            self.engines[attempt.engine].watch(event.job, mark)

    def _finish(self, attempt: Attempt, end: End, outcome: Outcome) -> None:
        """A started request is over at its engine."""
        self._close(attempt, end)
        usage = None if outcome is Outcome.FAILED else Usage(min(attempt.prefilled, attempt.arrival.prompt_tokens), attempt.produced)
        self.scheduler.settle(attempt.request, usage, outcome, self.now)
        self.scheduler.depart(attempt.request)
        if self._yielding is not None:
            self._yielding.over(attempt.request, usage.tokens if usage is not None else 0)
        if outcome is Outcome.COMPLETED:
            self._forecaster.learn(attempt.asked, attempt.prediction, attempt.produced, self.now)
            if self._short is not None:
                self._short.learn(attempt.asked, attempt.produced)

    def _lose_patience(self, attempt: Attempt) -> None:
        if attempt.end is not End.OPEN or attempt.first_token_at is not None:
            return
        if attempt.started_at is None:
            self.scheduler.cancel(attempt.request, self.now)
            self._count(attempt, -1)
            self._close(attempt, End.ABANDONED)
        else:
            self.engines[attempt.engine].abort(attempt.job, self.now)
            self._finish(attempt, End.ABANDONED, Outcome.CANCELLED)
        self._retry(attempt)

    def _retry(self, attempt: Attempt) -> None:
        pause = self.setup.clients.retry_in_s(attempt.tries, attempt.retry_after_s, self._rng)
        if pause is not None:
            self._agenda.put(self.now + pause, partial(self._attempt, attempt.arrival, attempt.call, attempt.tries + 1))

    def _close(self, attempt: Attempt, end: End) -> None:
        attempt.end = end
        attempt.ended_at = self.now
        self._measure(attempt)
        del self._open[attempt.request.id]

    def _measure(self, attempt: Attempt) -> None:
        attempt.prefilled = attempt.job.prefilled_tokens
        attempt.produced = self.engines[attempt.engine].produced(attempt.job)

    def _count(self, attempt: Attempt, by: int) -> None:
        self.record.backlogs[attempt.arrival.rank].change(by, self.now)

    def _slow_down(self, factor: int) -> None:
        for engine in self.engines:
            engine.slow_down(factor, self.now)

    def _staff(self, *, last: bool) -> None:
        """The last engine comes, or goes and ends what it runs; without a gateway nobody takes note."""
        if isinstance(self.scheduler, Scheduler):
            engines = engine_specs(self.setup)
            kinds = [queue.spec for queue in self.scheduler.pools[POOL].queues]
            self.scheduler.reconfigure(POOL, kinds, engines if last else engines[:-1])
            self.scheduler.engine_report(POOL, engines[-1].name, up=last)

    def _control(self, limits: Sequence[Controlled]) -> None:
        """Once a second, for ever: what the engines show moves their limits."""
        for one in limits:
            one.tick(self.now)
        self._agenda.put(self.now + TICK_S, partial(self._control, limits))

    def _count_preemptions(self, sign: int) -> None:
        self.record.preemptions += sign * sum(engine.preemptions for engine in self.engines)
