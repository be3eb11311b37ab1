"""A swarm of random gateways against the scheduler: `swarm(seed)` is one of them.

A seed draws a configuration (`plan`), in which about half of all features are off, and then random events in virtual time: arrivals,
progress, ends whose usage is off by up to ×4 both ways, clients that leave, engines that come, go and change, new shares and
weights, drains, a clock that stands still and one that jumps. After each event the scheduler is polled, and everything that it
decided and counts is compared with an account of the swarm's own (`model`) by the checkers of the invariants (`checks`, `shares`).
At the end all work is let run out, and everything must be zero.
A failure is one line: the command that reproduces it, and the invariant. Many seeds: `python -m tests.swarm --seeds 0:1000`.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from fairlane.core.request import Decision, Prefix, Request, Shed, Start
from fairlane.core.values import Outcome, State, Usage
from fairlane.errors import Reason
from tests.swarm.checks import CONTENDED, LATE, Broken, Checks, held
from tests.swarm.holds import begin_hold, cap_now_and_then, held_by, note_holds
from tests.swarm.model import Job, Model
from tests.swarm.plan import NEVER_S, Plan, classes, drawn, engine, scheduler_of, sequences, tenant
from tests.swarm.reference import Minimum
from tests.swarm.shares import Shares
from tests.swarm.staff import Staff

STEPS = 2000
LIMITS = {"kv", "prefill", "context", "lane", "sequences"}  # features under which a head may fit where others do not
SHORT = 0.3  # of the requests may use a fast lane, where there are any
MOVES = 10_000  # of the end, by which all work has run out


def swarm(seed: int, steps: int = STEPS) -> str:
    """Runs one seed; returns what was decided, in order. Raises `Broken` with the command that reproduces it."""
    run = Run(seed)
    try:
        for _ in range(steps):
            run.step()
        run.drain()
    except Exception as fault:
        what = fault if isinstance(fault, Broken) else repr(fault)
        raise Broken(f"python -m tests.swarm --seed {seed} --steps {min(run.steps, steps)}  # {run.event}: {what}") from fault
    return " ".join(run.log)


class Run:
    """One seed's gateway, and what happens to it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.lanes = Random(f"lanes {seed}")
        self.caps = Random(f"caps {seed}")
        self.plan: Plan = drawn(self.random, self.lanes)
        self.now = 0.0
        self.scheduler = scheduler_of(self.plan)
        self.model = Model(self.plan)
        self.staff = Staff(seed, self.scheduler, self.model)
        self.checks = Checks(self.scheduler, self.model, self.plan.max_queued, self.plan.features)
        self.shares = Shares(self.model)
        self.tenants = {t.name: t for t in self.plan.tenants}
        self.quiet: set[tuple[str, int]] = set()  # tenants and ranks from which nothing comes now
        self.ids = self.steps = 0
        self.event = ""
        self.log: list[str] = []
        self.renewed = False  # a tenant came with other numbers
        self.begun: dict[int, Job] = {}  # started, but not yet told
        self.over: list[Job] = []  # the last that had started
        self.refused: set[int] = set()  # at submission, but not yet told
        self.twins: tuple[int, ...] = ()
        self.pending: dict[int, Job] = {}  # evicted, but not yet told
        self._events = {name: getattr(self, f"_{name}") for name in self.plan.events}
        self._weights = list(self.plan.events.values())
        if self.model.policy == "gmp" and not self.plan.features & {"two pools", "slo"}:
            self.checks.minimum = Minimum([c.min_share for c in self.plan.pools[0].classes])
        for pool in self.plan.pools:
            for spec in pool.engines:
                self.scheduler.engine_report(pool.name, spec.name, up=True)

    def step(self) -> None:
        """One random event, and everything that follows from it."""
        self.steps += 1
        if "frozen clock" not in self.plan.features:
            self.now += self.random.expovariate(10.0)
        (self.event,) = self.random.choices(list(self._events), self._weights)
        self._events[self.event]()
        cap_now_and_then(self.caps, self.scheduler)
        self._poll()

    def drain(self) -> None:
        """Lets everything end with all engines up: what waits starts or is shed, and nothing is left of it."""
        self.event = "drain"
        for site in self.model.sites.values():
            self.staff.report(site, up=True, spec=replace(site.spec, slots=max(1, site.spec.slots)))
        self._poll()
        for _ in range(MOVES):
            if not self.model.present and not self.model.running:
                break
            self.now += 0.1
            self._finish()
            for job in list(self.model.settled.values()):
                self._depart_one(job)
            self._poll()
        held(not self.model.running and not self.model.queued, "I3 left over", len(self.model.running), len(self.model.queued))
        held(self.model.ended == set(range(1, self.ids + 1)), "answer: not all ended")
        for pool in self.scheduler.pools.values():
            held(pool.places.held is None and pool.places.running == 0, "I9 not at rest", pool.name)
        held(not any(t.running or t.queued or t.flows for t in self.scheduler.tenants.values()), "I4 tenants not at rest")

    def _poll(self) -> None:
        """Takes all decisions, and compares."""
        holds = held_by(self.scheduler)
        decisions = list(self.scheduler.poll(self.now))
        looked = False
        lasting = self.event in ("arrive", "finish", "progress", "depart") and not any(isinstance(d, Shed) for d in decisions)
        held_at_all = holds.keys() | held_by(self.scheduler).keys()
        started: dict[int, Job] = {}
        for decision in decisions:
            if isinstance(decision, Start):
                looked = looked or self._look(decision)
                pool = decision.request.pool
                first = pool not in {j.request.pool for j in started.values()}
                if first and lasting and pool in holds and holds[pool] == held_by(self.scheduler).get(pool):
                    self.checks.reserved(decision)
                sure = pool not in held_at_all and (first or not self.plan.features & LIMITS)
                started[decision.request.id] = self._start(decision, sure=sure)
            else:
                self._shed(decision)
        note_holds(self.model, holds, held_by(self.scheduler), list(started.values()))
        if not looked:
            self._look(None)
        if self.checks.minimum is not None:
            self.checks.minimum.note(self._backlogged())
        held(not self.pending and not self.refused and not self.begun, "answer: decided but not told")
        held(not self.scheduler.poll(self.now), "I6 polling again decides more")
        self._compare_twins(decisions)
        self.checks.after(
            decisions,
            corrected=self.renewed or bool(self.model.corrections),
            bounded=self.event not in ("bounce", "lose", "burst"),
            now=self.now,
        )
        self.shares.after(list(started.values()))
        self.renewed = False

    def _look(self, start: Start | None) -> bool:
        """The reference of the guarantee sees what the scheduler saw when it began to dispatch."""
        if start is not None and start.request.id in self.begun:
            return False
        if self.checks.minimum is not None:
            self.checks.minimum.look(self.model.corrections, self._backlogged())
        return True

    def _backlogged(self) -> set[int]:
        return {rank for pool, rank in self.model.lines("main") if self.model.competing((pool, rank))}

    def _start(self, start: Start, *, sure: bool) -> Job:
        job = self.begun.pop(start.request.id, None) or self.model.queued.get(start.request.id)
        assert job is not None, "answer: started twice, or after its end"
        if job.engine is None or job.request.id not in self.model.running:
            self._run(job, start.engine, sure=sure)
        held(job.engine is self.model.sites[start.engine], "answer: started elsewhere", start.engine)
        self.log.append(f"{job.request.id}@{start.engine}")
        return job

    def _run(self, job: Job, engine: str, *, sure: bool) -> Job:
        site = self.model.sites[engine]
        self.checks.start(job, site, sure=sure, now=self.now)
        if self.checks.minimum is not None:
            self.checks.minimum.start(job)
        self.model.start(job, site)
        return job

    def _shed(self, shed: Shed) -> None:
        identity = shed.request.id
        job = self.pending.pop(identity, None)
        if identity in self.model.queued:
            job = self.model.queued[identity]
            self.model.leave(job, self.now)
        elif identity in self.refused:
            self.refused.remove(identity)
            self.model.ended.add(identity)
        else:
            held(job is not None, "answer: shed twice, or after its end", identity)
        self.checks.shed(shed, job, self.now)
        self.log.append(f"{identity}:{shed.reason}:{shed.retry_after_s}")

    def _compare_twins(self, decisions: list[Decision]) -> None:
        """Of two equal requests refused at one moment for one reason, the second is told to come back later, within the bounds."""
        twins = [d for d in decisions if isinstance(d, Shed) and d.request.id in self.twins]
        displaced = any(isinstance(d, Shed) and d.reason is Reason.DISPLACED for d in decisions)
        if len(twins) == 2 and twins[0].reason is twins[1].reason and twins[0].reason not in LATE and not displaced:
            first, second = (d.retry_after_s or 0.0 for d in twins)
            spec = self.model.classes[twins[0].request.pool, twins[0].request.rank]
            within = twins[0].reason in CONTENDED and spec.retry_after_min_s < first < spec.retry_after_max_s
            held(first < second if within else first <= second, "I12 told sooner than its twin", twins[0].reason, first, second)
        self.twins = ()

    def _note_decided(self) -> None:
        """Tells the model what the scheduler has decided before it is asked; the answer must follow at the next poll."""
        for job in [j for j in self.model.queued.values() if j.request.state is State.ENDED]:
            self.pending[job.request.id] = job
            self.model.leave(job, self.now)
        for job in [j for j in self.model.queued.values() if j.request.state is State.RUNNING]:
            minimum = self.checks.minimum
            if minimum is not None:
                minimum.note({job.request.rank})
            self.begun[job.request.id] = self._run(job, job.request.engine.spec.name, sure=not self.plan.features & LIMITS)
            if minimum is not None:
                minimum.note(self._backlogged())

    def _submit(self, request: Request, usage: Usage) -> None:
        if self.model.known.get(request.tenant.name) is not request.tenant:
            self.shares.restart()
            self.renewed = True
        self.model.meet(request.tenant, self.now)
        self.checks.submitted(request, self.now)
        self.scheduler.submit(request, self.now)
        refused = self.checks.refused(request)
        if refused:
            self.refused.add(request.id)
        self._note_decided()
        if not refused:
            self.model.feed(request, usage)
            self._note_decided()

    def _drawn(self) -> tuple[Request, Usage] | None:
        """A new request from a tenant that is not quiet, with what it will really use."""
        r, on = self.random, self.plan.features
        pool = r.choice(self.plan.pools)
        tenant, rank = r.choice(list(self.tenants.values())), r.randrange(len(pool.classes))
        if (tenant.name, rank) in self.quiet:
            return None
        size = 10 if "giants" in on and r.random() < 0.03 else 1
        prompt, output = r.randint(1, 400) * size, r.randint(0, 150) * size
        ratio = min(max(self.plan.bias[tenant.name] * 2.0 ** r.uniform(-1, 1), 0.25), 4.0) if "errors" in on else 1.0
        used_prompt = round(prompt * (r.uniform(0.5, 2.0) if "errors" in on else 1.0))
        cached = r.randint(0, prompt) if "cached" in on and r.random() < 0.3 else 0
        if short := "lane" in on and self.lanes.random() < SHORT:  # some of them will be longer than was foretold
            output, ratio = self.lanes.randint(0, 10), self.lanes.choice([1.0, 1.0, 1.0, 1.0, 20.0])
        self.ids += 1
        request = Request(
            self.ids,
            tenant,
            pool.name,
            rank,
            "m",
            prompt,
            output,
            prompt + output,
            prompt,
            prompt + output + r.choice([0, 50, 2000]),
            self.now,
            r.choice([0, round(output * 1.5)]),
            sequences=sequences(self.lanes, on),
            streams=r.random() < 0.7,
            short=short,
            prefix=Prefix(self.ids % 9 + 1, self.ids % 5, 99, 20) if self.ids % 2 else None,
        )
        return request, Usage(used_prompt, round(output * ratio), cached)

    def _arrive(self) -> None:
        if (arrival := self._drawn()) is not None:
            self._submit(*arrival)

    def _burst(self) -> None:
        """Several at one moment before the scheduler is asked, the first and the last alike."""
        arrivals = [a for _ in range(self.random.randint(1, 6)) if (a := self._drawn()) is not None]
        if arrivals:
            request, usage = arrivals[0]
            self.ids += 1
            arrivals.append((replace(request, id=self.ids), usage))
            self.twins = request.id, self.ids
        for arrival in arrivals:
            self._submit(*arrival)

    def _pick(self, among: dict[int, Job]) -> Job | None:
        return among[self.random.choice(list(among))] if among else None

    def _finish(self) -> None:
        if (job := self._pick(self.model.running)) is not None:
            so_far = Usage(job.usage.prompt_tokens, job.produced)
            failed = None if self.random.random() < 0.5 else so_far
            self._settle(
                job,
                *self.random.choices(
                    [(job.usage, Outcome.COMPLETED), (so_far, Outcome.CANCELLED), (failed, Outcome.FAILED)],
                    [8, 1, 1] if "cancel" in self.plan.features else [1, 0, 0],
                )[0],
            )

    def _settle(self, job: Job, usage: Usage | None, outcome: Outcome) -> None:
        self.scheduler.settle(job.request, usage, outcome, self.now)
        self.model.settle(job, usage, self.now)
        self.over = [*self.over[-2:], job]

    def _progress(self) -> None:
        if (job := self._pick(self.model.running)) and job.request.streams and job.produced < job.usage.output_tokens:
            produced = min(job.usage.output_tokens, job.produced + self.random.choice([1, 20, 200]))
            self.scheduler.progress(job.request, produced, self.now)
            self.model.progress(job, produced)

    def _depart(self) -> None:
        among = self.model.settled if self.random.random() < 0.9 else self.model.present
        if (job := self._pick(among)) is not None:
            self._depart_one(job)

    def _depart_one(self, job: Job) -> None:
        self.scheduler.depart(job.request)
        self.model.depart(job)

    def _cancel(self) -> None:
        if (job := self._pick(self.model.queued)) is not None:
            self.scheduler.cancel(job.request, self.now)
            self.model.leave(job, self.now)

    def _bounce(self) -> None:
        """The engine could not be reached."""
        if (job := self._pick({i: j for i, j in self.model.running.items() if not j.produced})) is not None:
            self.scheduler.requeue(job.request)
            self.model.requeue(job)

    def _lose(self) -> None:
        """An engine goes down with all that runs there; some of it had never reached it."""
        site = self.random.choice(list(self.model.sites.values()))
        self.staff.report(site, up=False, spec=site.spec)
        for job in list(site.jobs.values()):
            if job.produced or self.random.random() < 0.5:
                self._settle(job, None, Outcome.FAILED)
            else:
                self.scheduler.requeue(job.request)
                self.model.requeue(job)

    def _revive(self) -> None:
        """Engines do not stay away for long."""
        for site in self.model.sites.values():
            if not site.up:
                self.staff.report(site, up=True, spec=site.spec)

    def _resize(self) -> None:
        """An engine tells other numbers; for a while it may take nothing."""
        site = self.random.choice(list(self.model.sites.values()))
        spec = engine(self.random, self.lanes, site.spec.name, self.plan.features)
        self.staff.report(site, up=site.up, spec=replace(spec, slots=0) if self.random.random() < 0.1 else spec)

    def _reclass(self) -> None:
        pool = self.random.choice(self.plan.pools)
        new = classes(self.random, self.plan.features, len(pool.classes))
        self.scheduler.reconfigure(pool.name, new)
        self.checks.minimum = None
        self.model.classes.update({(pool.name, c.rank): c for c in new})
        self.shares.restart()

    def _respec(self) -> None:
        """A tenant's numbers change; the scheduler hears of it with its next request."""
        old = self.random.choice(list(self.tenants.values()))
        new = tenant(self.random, old.name, self.plan.features)
        self.tenants[old.name] = replace(new, requests=old.requests, tokens=old.tokens)

    def _evict(self) -> None:
        self.scheduler.evict_all(Reason.DRAINING, self.now)
        self._note_decided()
        held(not self.model.queued, "answer: survived a drain", *self.model.queued)

    def _tick(self) -> None:
        self.now += self.random.expovariate(1.0)
        begin_hold(self.plan, self.lanes, self.scheduler, self.model)

    def _jump(self) -> None:
        """Far ahead; or first to just before something is due, when nothing may happen, and then to that moment."""
        wake = self.scheduler.wake_at()
        if wake is None or wake > NEVER_S / 2 or self.random.random() < 0.3:
            self.now += self.random.choice([1.0, 30.0, 1000.0])
            return
        early = self.now + 0.99 * (wake - self.now)
        if early < wake and "slo" not in self.plan.features:  # a first token that comes too late is noticed when there is a reason to look
            due = self.scheduler.poll(early)
            held(not due, "wake: something was due before", due)
        self.now = wake

    def _mood(self) -> None:
        """A tenant falls quiet in one class, or comes back."""
        self.quiet ^= {(self.random.choice(list(self.tenants)), self.random.randrange(4))}

    def _again(self) -> None:
        """What is over is over: told twice, it changes nothing."""
        for job in self.over[-3:]:
            if job.request.id in self.model.ended:
                self.scheduler.settle(job.request, Usage(5, 5), Outcome.COMPLETED, self.now)
                self.scheduler.cancel(job.request, self.now)
                self.scheduler.requeue(job.request)
                self.scheduler.progress(job.request, 10_000, self.now)
                held(not self.scheduler.depart(job.request), "answer: departed twice", job.request.id)
        for job in list(self.model.running.values())[:1]:
            self.scheduler.cancel(job.request, self.now)
        for job in list(self.model.queued.values())[:1]:
            self.scheduler.settle(job.request, Usage(5, 5), Outcome.COMPLETED, self.now)
            held(not self.scheduler.depart(job.request), "answer: departed before its start", job.request.id)
