"""The checkers of single decisions and of the books; each names the invariant that it holds.

I3 nobody is overtaken without bound, I4 conservation, I5 idle time gains nothing, I6 work conservation, I7 static keys, I8 tags only
rise, but by corrections, I9 limits, I10 priority, I12 monotone Retry-After; and beside these: one answer for each request (`answer`),
a reason for each refusal (`reason`), bounds on what waits (`bounds`), and the promise of `wake_at` (`wake`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fairlane.core.flows import TAG_UNIT, Flow
from fairlane.core.protocols import ClassOrder
from fairlane.core.request import Decision, Request, Shed, Start
from fairlane.core.scheduler import Scheduler
from fairlane.core.values import State
from fairlane.errors import RULES, Family, Reason
from fairlane.policies.headroom import Headroom
from tests.swarm.model import BY_ARRIVAL, INPUT, OUTPUT, TENANTS_SHARE, Bucket, Job, Line, Model, Site, sequences, steps_of
from tests.swarm.reference import Minimum

LATE = (Reason.WAIT_EXPIRED, Reason.DEADLINE_MISSED)
NEAR = 1e-6  # units of a bucket that rounding may make
CONTENDED = (Reason.QUEUE_FULL, Reason.WAIT_TOO_LONG, Reason.TENANT_QUEUE_FULL, Reason.DISPLACED, Reason.WAIT_EXPIRED)
SECONDS_PER_RANK = 10.0  # of `aging`
OWED_FIRST = 1e15  # before all ranks
FIRST_ESTIMATE = 10  # starts before any wait is estimated


class Broken(AssertionError):
    """An invariant does not hold."""


def held(truth: bool, invariant: str, *what: object) -> None:
    """Fails with the name of the invariant, and what there was instead, unless it holds."""
    if not truth:
        raise Broken(" ".join(map(str, (invariant, *what))))


class Checks:
    """Compares a scheduler with the model; keeps what has to be compared with the step before."""

    def __init__(self, scheduler: Scheduler, model: Model, max_queued: int, features: Collection[str]) -> None:
        self.scheduler = scheduler
        self.model = model
        self.max_queued = max_queued
        self.features = features
        self._tags: dict[tuple[Flow, int], int] = {}
        self.minimum: Minimum | None = None  # where the rule of the guarantee is to be followed to the letter
        self._floors: dict[Line, tuple[int, set[str]]] = {}  # where flows are lifted to, and which compete
        self._over: dict[object, int] = {}  # what waits, for each bound
        self._causes: dict[int, set[Reason]] = {}
        self._must = self._unsure = False

    def submitted(self, request: Request, now: float) -> None:
        """Before `submit`: notes for what reasons the request may be refused, and whether it must be."""
        model = self.model
        name, line = request.tenant.name, (request.pool, request.rank)
        spec = model.classes[line]
        cost = INPUT * request.prompt_tokens + OUTPUT * request.output_tokens
        waiting = [j for j in model.queued.values() if j.line == line]
        own = sum(j.flow[2] == name for j in model.queued.values())
        sites = model.open_sites(request.pool)
        most, tenant_most = spec.max_queued_cost, request.tenant.max_queued
        full = len(waiting) >= spec.max_queued or (most is not None and sum(j.charged for j in waiting) + cost > most)
        rates, poor = self._rates(request, now)
        causes = {
            Reason.NO_ENGINE: not sites,
            Reason.CONTEXT_LENGTH_EXCEEDED: all(s.spec.context is not None and request.longest_prompt > s.spec.context for s in sites),
            Reason.REQUEST_OVER_LIMIT: (most is not None and cost > most) or poor,
            Reason.TENANT_QUEUE_FULL: tenant_most is not None and own >= tenant_most,
            Reason.QUEUE_FULL: full or len(model.queued) >= self.max_queued,
            Reason.WAIT_TOO_LONG: model.starts >= FIRST_ESTIMATE,
        }
        self._causes[request.id] = rates | {reason for reason, there in causes.items() if there}
        self._must = bool(rates) or poor or not sites
        self._unsure = any(abs(bucket.level - amount) < NEAR for bucket, amount in self._buckets(request, now))

    def refused(self, request: Request) -> bool:
        """Right after `submit`: whether it was refused, which it must be for want of tokens or engines."""
        held(self._unsure or not self._must or request.state is State.ENDED, "reason: let pass", request.id)
        return request.state is State.ENDED

    def _buckets(self, request: Request, now: float) -> list[tuple[Bucket, int]]:
        pairs = zip(self.model.buckets[request.tenant.name], (1, request.limit_tokens), strict=True)
        there = [(bucket, amount) for bucket, amount in pairs if bucket is not None]
        for bucket, _ in there:
            bucket.move(0.0, now)
        return there

    def _rates(self, request: Request, now: float) -> tuple[set[Reason], bool]:
        """Which buckets have too little, within what rounding makes, and whether one is too small."""
        buckets = self._buckets(request, now)
        poor = any(amount > bucket.rate.burst for bucket, amount in buckets)
        requests = self.model.buckets[request.tenant.name][0]
        reasons = {
            Reason.RATE_LIMIT_REQUESTS if bucket is requests else Reason.RATE_LIMIT_TOKENS
            for bucket, amount in buckets
            if bucket.level < amount + NEAR
        }
        return reasons, poor

    def shed(self, shed: Shed, job: Job | None, now: float) -> None:
        """A refusal is of the right kind and has its cause; `job` is None where the request never waited."""
        request, reason = shed.request, shed.reason
        rule = RULES[reason]
        held(request.state is State.ENDED, "answer: shed but", request.state)
        held((shed.retry_after_s is not None) == rule.retryable, "I12 retry after", shed)
        if job is not None:
            held(rule.family is Family.EVICTED or reason is Reason.NO_ENGINE, "reason: evicted as", reason)
            held(reason is not Reason.WAIT_EXPIRED or now >= job.deadline, "reason: expired early", request.id)
        else:
            held(reason in self._causes[request.id], "reason: refused as", reason, "instead of", self._causes[request.id])
        if reason in CONTENDED:
            spec = self.model.classes[request.pool, request.rank]
            held(spec.retry_after_min_s <= (shed.retry_after_s or 0.0) <= spec.retry_after_max_s, "I12 bounds", shed.retry_after_s)
        if reason is Reason.DEADLINE_MISSED and job is not None:
            slo = self.model.classes[job.line].ttft_slo_s is not None
            held(job.slo or slo, "reason: no such deadline", request.id)
        if reason is Reason.NO_ENGINE:
            held(not self.model.open_sites(request.pool), "reason: there is an engine", request.id)

    def start(self, job: Job, site: Site, *, sure: bool, now: float) -> None:
        """Before the model takes a start: the request may run there, is the first of its flow or passes by the fast lane, and
        nobody is entitled before it.

        `sure`: no hold can have come or gone since the model was last compared.
        """
        model, request = self.model, job.request
        held(site.up and site.pool == request.pool, "I9 started on an engine that is not there", site.spec.name)
        held(model.fits(site, request, self._prefill_tokens(site)), "I9 started where it does not fit", request.id, site.spec)
        heads = model.competing(job.line)
        job.passed = request.short and (job not in heads or len([h for x in model.lines(job.request.pool) for h in model.competing(x)]) > 1)
        held(job in heads or job.passed, "I7 not the head of a flow that may start", request.id, job.flow)
        owed = model.policy == "gmp" and request.owed
        held(not owed or model.classes[job.line].min_share > 0, "I10 owed without a share", request.id)
        if self.minimum is not None:
            held(self.minimum.owed(request.rank) == owed, "I1 owed", request.id, owed)
        charge = job.charged * TAG_UNIT // model.weight(request.tenant.name)
        held(request.flow_charge == charge, "I2 charged", request.id, request.flow_charge, charge)
        if job.passed and (not sure or self._lane(job)):
            return
        if model.policy in BY_ARRIVAL and model.policy != "drr":
            held(all(job.key <= j.key for j in heads), "I7 not by arrival inside the class", request.id)
        for other in model.waiting[job.flow].values():
            within = request.arrived_at <= other.request.arrived_at + other.window
            held(within or other.request.id > request.id, "I3 overtook", other.request.id, request.id)
        if sure and (not owed or self.minimum is not None):
            self._priority(job, now)

    def _lane(self, job: Job) -> bool:
        """Whether a short request may start by the fast lane: where no head fits that room is not kept from, and as the first of the
        short ones of its class."""
        order = self.scheduler.pools[job.request.pool].order
        heads = [self.model.competing(line) for line in self.model.lines(job.request.pool) if not order.keeps(line[1])]
        if any(each and all(self.takers(j) for j in each) for each in heads):
            held(job in self.model.competing(job.line), "I10 passed by the lane though a head fits", job.request.id)
            return False
        ordinary = job in self.model.competing(job.line)
        held(
            ordinary or job is self.first_short(job.line) or "tenant running" in self.features, "I7 not the first short one", job.request.id
        )
        return True

    def first_short(self, line: Line) -> Job | None:
        """The short request that arrived first of those that its class's and its tenant's `max_running` let start."""
        able = {j.flow for j in self.model.competing(line)}
        short = (j for j in self.model.queued.values() if j.flow in able and j.request.short)
        return min(short, key=lambda j: (j.request.arrived_at, j.request.id), default=None)

    def reserved(self, start: Start) -> None:
        """The first start under a hold that lasts: only what ends before the moment of that goes there from another class."""
        hold = self.model.holds[start.request.pool]
        if start.engine == hold.site.spec.name and start.request.rank != hold.request.rank and hold.before is not None:
            steps = steps_of(start.request)
            held(steps < self.model.moments(hold)[1], "I6 reserved", start.engine, steps)

    def _priority(self, job: Job, now: float) -> None:
        """No other class whose every head fits goes before by the policy's rule."""
        mine = self._precedence(job, now)
        if mine is None:
            return
        for line in self.model.lines(job.request.pool):
            if line == job.line:
                continue
            heads = self.model.competing(line)
            ahead = bool(heads) and all((p := self._precedence(j, now)) is not None and p < mine for j in heads)
            held(not (ahead and all(self.takers(j) for j in heads)), "I10", job.request.id, "went before class", line)

    def _precedence(self, job: Job, now: float) -> float | None:
        """Where a head stands between the classes by the bare rule of its policy; None: the rule is not so simple."""
        request = job.request
        if self.minimum is not None and self.minimum.owed(request.rank):
            return self.minimum.finish(job) - OWED_FIRST
        match self.model.policy:
            case "fifo":
                return request.arrived_at
            case "aging":
                return request.rank * SECONDS_PER_RANK + request.arrived_at
            case "submit_aging":
                return float(request.rank)
            case "strict" | "gmp":
                after = self.model.classes[job.line].promote_after_s
                return float(request.rank - (after is not None and now - request.arrived_at >= after))
        return None

    def takers(self, job: Job) -> list[Site]:
        """The engines that would take the request now, by all that is known of a hold for another class."""
        hold, steps = self.model.holds.get(job.request.pool), steps_of(job.request)
        sites = self.model.open_sites(job.request.pool)
        if hold is not None and hold.request.rank != job.request.rank and (hold.before is None or steps >= self.model.moments(hold)[0]):
            sites = [s for s in sites if s is not hold.site]
        return [s for s in sites if self.model.fits(s, job.request, self._prefill_tokens(s))]

    def after(self, decisions: list[Decision], *, corrected: bool, bounded: bool, now: float) -> None:
        """After a step whose decisions the model has taken: all books agree, and nothing is left undone.

        `corrected`: something was charged anew; `bounded`: at most one request was added, at the end of its line.
        """
        for pool in self.model.specs:
            for line in self.model.lines(pool):
                self._books(line)
                self._work(line)
                self._lifted(line, corrected=corrected)
            self._hold(pool)
        for site in self.model.sites.values():
            self._limits(site)
        for name in self.model.known:
            self._tenant(name, now)
        self._wake(now)
        self._bounds(bounded=bounded)
        self._rising(corrected=corrected)
        held(self.scheduler.queued == len(self.model.queued), "I4 queued", self.scheduler.queued)
        held(not any(isinstance(d, Start) and d.request.state is not State.RUNNING for d in decisions), "answer: not running")

    def _books(self, line: Line) -> None:
        pool = self.scheduler.pools[line[0]]
        queue = pool.queues[line[1]]
        waiting = [j for j in self.model.queued.values() if j.line == line]
        running = [j for j in self.model.running.values() if j.line == line]
        held((queue.queued, queue.running) == (len(waiting), len(running)), "I4 counts", line, queue.queued, queue.running)
        held(queue.cost == sum(j.charged for j in waiting), "I4 waiting cost", line, queue.cost)
        held(all(j.request.cost == j.charged for j in (*waiting, *running)), "I4 charges", line)
        held(all(j.request.state is State.WAITING and j.key == j.request.key for j in waiting), "I7 keys", line)
        held(queue.served_cost == self.model.served[line], "I4 served", line, queue.served_cost, self.model.served[line])
        total = sum(self.model.served[other] for other in self.model.lines(line[0]))
        order = getattr(pool.order, "inner", pool.order)
        held(getattr(order, "total", total) == total, "I4 total", total)
        flows = {j.flow[2] for j in waiting}
        held({f.tenant.spec.name for f in queue.waiting_flows} == flows, "I4 flows", line)
        held(queue.waiting_weight == sum(self.model.weight(name) for name in flows), "I4 weight", line)

    def _work(self, line: Line) -> None:
        """The head of a class fits nowhere, or room is kept from it; where an engine is empty, only its context may be the cause."""
        pool = self.scheduler.pools[line[0]]
        queue = pool.queues[line[1]]
        if self._kept(pool.order, line):
            return
        heads = self.model.competing(line)
        held(queue.backlogged == bool(heads), "I6 backlogged", line)
        if heads:
            head = next((j for j in heads if j.request is queue.head()), None)
            held(head is not None, "I7 head", line)
            held(head is None or not self.takers(head), "I6 fits, but waits", line)
            idle = [s for s in self.model.open_sites(line[0]) if not s.jobs and s.spec.slots]
            held(head is None or not any(self.model.suits(s, head.request) for s in idle), "I6 waits for an empty engine", line)
            quick = self.first_short(line)
            hold = self.model.holds.get(line[0])
            excused = "tenant running" in self.features or (hold is not None and hold.request.rank == line[1])
            held(quick is None or excused or not self.takers(quick), "I6 the lane has room", line)

    def _kept(self, order: ClassOrder, line: Line) -> bool:
        """Whether room is kept from a class: only where others of the less urgent run, up to the cap, and it is owed nothing."""
        if not isinstance(order, Headroom):
            return False
        lines = list(self.model.lines(line[0]))
        first = next((rank for pool, rank in lines if self.model.classes[pool, rank].ttft_slo_s is not None), len(lines))
        below = sum(j.line[0] == line[0] and j.line[1] > first for j in self.model.running.values())
        held(order.below == below, "I6 running below", line, order.below, below)
        kept = order.keeps(line[1])
        held(not kept or (line[1] > first and 0 < below > order.cap - 1 and not order.is_owed(line[1])), "I6 kept for nothing", line)
        return kept

    def _lifted(self, line: Line, *, corrected: bool) -> None:
        """A flow that competes anew has been lifted to where the others were: idle time has earned it nothing."""
        queue = self.scheduler.pools[line[0]].queues[line[1]]
        floor, before = self._floors.get(line, (0, set()))
        competing = {j.flow[2] for j in self.model.competing(line)}
        tags = [queue.flows[name].tag for name in competing - before]
        excused = corrected or self.model.policy not in TENANTS_SHARE
        held(excused or all(tag >= floor for tag in tags), "I5 came back with credit", line, floor, *tags)
        self._floors[line] = queue.turns.floor(), competing

    def _hold(self, pool: str) -> None:
        places = self.scheduler.pools[pool].places
        held((places.held is None) == (places.held_by is None), "I6 held in part", pool)
        for engine in places.engines.values():
            limit: Any = engine.limit
            held((limit.reserved is None) == (engine is not places.held), "I6 reserved but not held", engine.spec.name)
        if places.held_by is not None:
            held(places.held_by.state is State.WAITING, "I6 held for what does not wait", pool)
            held(places.held in places.open, "I6 held but not open", pool)
            held(bool(self.model.competing((pool, places.held_by.rank))), "I6 held for nobody", pool)

    def _prefill_tokens(self, site: Site) -> int | None:
        """The limit on prompt tokens ahead: the engine's, or where it has none what the pool has learned."""
        limit = self.scheduler.pools[site.pool].places.engines[site.spec.name].limit
        held(site.spec.prefill_tokens in (None, limit.prefill_tokens), "I9 a set limit was learned away", site.spec.name)
        return limit.prefill_tokens

    def _limits(self, site: Site) -> None:
        state = self.scheduler.pools[site.pool].places.engines.get(site.spec.name)
        if state is None:
            held(not site.up and not site.jobs, "I9 an engine was dropped that is in use", site.spec.name)
            return
        limit: Any = state.limit
        jobs = site.jobs.values()
        tokens = sum(j.request.prompt_tokens + j.produced for j in jobs)
        prefilling = sum(j.request.prompt_tokens for j in jobs if j.request.streams and not j.produced)
        final = sum(j.request.prompt_tokens + j.upper for j in jobs)
        expected = sequences(jobs), tokens, prefilling, final
        held((limit.running, limit.tokens, limit.prefilling, limit.final) == expected, "I9 counts", site.spec.name, *expected)
        short = [j for j in jobs if j.short]
        in_lane = sequences(short), sum(j.request.prompt_tokens + site.spec.lane_output for j in short)
        held((limit.short_running, limit.short_final) == in_lane, "I9 lane", site.spec.name, *in_lane)
        held(all(j.request.short == j.short for j in jobs), "I9 outgrown", site.spec.name)

    def _tenant(self, name: str, now: float) -> None:
        state = self.scheduler.tenants[name]
        waiting = [j for j in self.model.queued.values() if j.flow[2] == name]
        held((state.queued, state.running) == (len(waiting), self.model.runs(name)), "I4 tenant", name, state.queued, state.running)
        for bucket, real in zip(self.model.buckets[name], (state.requests, state.tokens), strict=True):
            if bucket is not None and real is not None:
                bucket.move(0.0, now)
                held(abs(bucket.level - real.level(now)) < NEAR * (1 + abs(bucket.level)), "I4 bucket", name, bucket.level, real.level(now))

    def _bounds(self, *, bounded: bool) -> None:
        """No more waits than may, but for what did before the bound was lowered or came back from an engine."""
        queued = self.model.queued.values()
        there: dict[object, tuple[int, int | None]] = {"all": (len(queued), self.max_queued)}
        for line, spec in self.model.classes.items():
            waiting = [j.charged for j in queued if j.line == line]
            there[line] = len(waiting), spec.max_queued
            there[line, "cost"] = sum(waiting), spec.max_queued_cost
        for name, tenant in self.model.known.items():
            there[name] = sum(j.flow[2] == name for j in queued), tenant.max_queued
        for bound, (value, most) in there.items():
            held(not bounded or most is None or value <= max(most, self._over.get(bound, 0)), "bounds", bound, value, most)
        self._over = {bound: value for bound, (value, _) in there.items()}

    def _wake(self, now: float) -> None:
        deadline = min((j.deadline for j in self.model.queued.values()), default=None)
        held(self.scheduler.wake_at() == deadline, "wake", self.scheduler.wake_at(), deadline)
        held(deadline is None or deadline > now, "wake: not expired", deadline, now)

    def _rising(self, *, corrected: bool) -> None:
        """The tag of a flow falls only by a correction, or with another weight, and never below its last lift."""
        tags = {(f, f.weight): f.tag for p in self.scheduler.pools.values() for q in p.queues for f in q.flows.values()}
        held(corrected or all(tag >= self._tags.get(flow, tag) for flow, tag in tags.items()), "I8 a tag fell")
        held(all(flow.tag >= flow.edge for flow, _ in tags), "I5 a refund became credit")
        self._tags = tags
