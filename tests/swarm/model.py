"""What the swarm knows of its own: an account of requests, engines and buckets that asks the scheduler nothing.

It is told what was fed and what was decided, and says from definitions alone what may run where and who is entitled to go first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import ceil, inf

from fairlane.core.flows import WEIGHT_STEPS
from fairlane.core.request import Request
from fairlane.core.scheduler import CHARGE_STEP
from fairlane.core.values import BucketRate, Engine, PoolSpec, PriorityClass, Tenant, Usage
from fairlane.policies.limits.nested import KV_RATIO, LANE_SLOTS_MIN, LANE_SLOTS_PART, LOWER_RATIO
from tests.core.limits.test_limit import peak
from tests.swarm.plan import Plan

INPUT, OUTPUT = 1, 4  # cost units per token
BY_ARRIVAL = ("aging", "drr", "fifo", "strict", "submit_aging")  # policies that do not put short requests first
TENANTS_SHARE = ("gmp", "vtc", "weighted")  # policies under which the tenants of a class share by weight
WITHOUT_HEAD_START = (*BY_ARRIVAL, "vtc")

Line = tuple[str, int]  # pool and rank
FlowName = tuple[str, int, str]  # and tenant


@dataclass(slots=True, eq=False)
class Job:
    """One request: what it was fed with, what it will really use, and what it owes."""

    request: Request
    usage: Usage
    charged: int
    deadline: float
    flow: FlowName
    key: float = 0.0
    window: float = 0.0  # within which it may be overtaken by its tenant's own
    slo: bool = False
    produced: int = 0
    beyond: int = 0
    upper: int = 0
    short: bool = False  # runs in the fast lane's account
    passed: bool = False  # started by the fast lane, before others whose turn it was
    moment: int = 0  # its start, in the order of all starts
    engine: Site | None = None

    @property
    def line(self) -> Line:
        return self.flow[:2]

    @property
    def steps(self) -> int:
        return ceil((self.upper - self.produced) / self.request.sequences)


@dataclass(slots=True, eq=False)
class Site:
    """One engine."""

    pool: str
    spec: Engine
    up: bool = True
    jobs: dict[int, Job] = field(default_factory=dict)


@dataclass(slots=True)
class Hold:
    """An engine that is kept for a request; `before` are the starts of what ran there then, or None where that is not known."""

    site: Site
    request: Request
    before: set[int] | None


@dataclass(slots=True)
class Bucket:
    """A token bucket: what it holds grows up to its capacity, whatever was charged or returned."""

    rate: BucketRate
    level: float
    at: float

    def move(self, amount: float, now: float) -> None:
        self.level = min(self.rate.burst, min(self.rate.burst, self.level + self.rate.per_s * (now - self.at)) + amount)
        self.at = now


class Model:
    """The account of a whole run."""

    def __init__(self, plan: Plan) -> None:
        self.policy = plan.pools[0].policy
        self.specs: dict[str, PoolSpec] = {p.name: p for p in plan.pools}
        self.classes: dict[Line, PriorityClass] = {(p.name, c.rank): c for p in plan.pools for c in p.classes}
        self.sites: dict[str, Site] = {e.name: Site(p.name, e) for p in plan.pools for e in p.engines}
        self.known: dict[str, Tenant] = {}  # as last fed with a request
        self.buckets: dict[str, tuple[Bucket | None, Bucket | None]] = {}
        self.waiting: dict[FlowName, dict[int, Job]] = {}
        self.queued: dict[int, Job] = {}
        self.running: dict[int, Job] = {}
        self.present: dict[int, Job] = {}  # started, and the client is still there
        self.settled: dict[int, Job] = {}  # and of these, whose engine is done
        self.ended: set[int] = set()
        self.holds: dict[str, Hold] = {}  # by pool
        self.served: Counter[Line] = Counter()  # charges of what runs, true costs of what ended
        self.flow_served: Counter[FlowName] = Counter()
        self.cost_max: Counter[FlowName] = Counter()
        self.depth: Counter[str] = Counter()  # the most that ran at once in a pool
        self.starts = 0
        self.corrections: list[tuple[Job, int]] = []  # since they were last looked at

    def feed(self, request: Request, usage: Usage) -> Job:
        """A request was submitted and not refused."""
        line = request.pool, request.rank
        spec = self.classes[line]
        cost = max(1, INPUT * request.prompt_tokens + OUTPUT * request.output_tokens)
        wait = spec.max_wait_s if spec.ttft_slo_s is None else min(spec.max_wait_s, spec.ttft_slo_s)
        job = Job(request, usage, cost, request.arrived_at + wait, (*line, request.tenant.name))
        job.slo = spec.ttft_slo_s is not None
        job.window = 0.0 if self.policy in WITHOUT_HEAD_START else self.classes[job.line].short_first_s
        job.key = job.request.arrived_at + min(0.001 * job.charged, job.window)
        self._wait(job)
        self.move_buckets(job, -1, -request.limit_tokens, request.arrived_at)
        return job

    def meet(self, tenant: Tenant, now: float) -> None:
        """The scheduler sees the tenant as it is now."""
        self.known[tenant.name] = tenant
        if tenant.name not in self.buckets:
            requests, tokens = (None if rate is None else Bucket(rate, rate.burst, now) for rate in (tenant.requests, tenant.tokens))
            self.buckets[tenant.name] = requests, tokens

    def move_buckets(self, job: Job, requests: float, tokens: float, now: float) -> None:
        """The tenant's buckets are charged, or given back to."""
        for bucket, amount in zip(self.buckets[job.flow[2]], (requests, tokens), strict=True):
            if bucket is not None:
                bucket.move(amount, now)

    def leave(self, job: Job, now: float) -> None:
        """A waiting request was cancelled or evicted: all it was charged goes back."""
        self._no_wait(job)
        self.ended.add(job.request.id)
        self.move_buckets(job, 1, job.request.limit_tokens, now)

    def start(self, job: Job, site: Site) -> None:
        """A waiting request runs there."""
        self._no_wait(job)
        self.starts += 1
        job.moment = self.starts
        job.engine = site
        job.produced = 0
        job.short = job.request.short
        job.upper = upper_of(job.request)
        site.jobs[job.request.id] = self.running[job.request.id] = self.present[job.request.id] = job
        self.depth[site.pool] = max(self.depth[site.pool], sum(len(s.jobs) for s in self.sites.values() if s.pool == site.pool))
        self._serve(job, job.charged)

    def progress(self, job: Job, produced: int) -> None:
        """A running request has produced so much; beyond its prediction it is charged in whole steps."""
        job.produced = produced
        assert job.engine is not None
        job.short = job.short and produced <= job.engine.spec.lane_output
        if produced > 0.9 * job.upper:
            job.upper = int(1.25 * produced) + 16
        beyond = max(0, produced - job.request.output_tokens) // CHARGE_STEP * CHARGE_STEP
        if beyond > job.beyond:
            extra = OUTPUT * (beyond - job.beyond)
            job.beyond = beyond
            job.charged += extra
            self._serve(job, extra)
            self.corrections.append((job, extra))

    def settle(self, job: Job, usage: Usage | None, now: float) -> None:
        """A running request is done at its engine, having used so much."""
        tokens = usage.prompt_tokens + usage.output_tokens if usage else 0
        cost = max(0, INPUT * (usage.prompt_tokens - usage.cached_tokens)) + OUTPUT * usage.output_tokens if usage else 0
        self._stop(job, cost)
        if job.request.id in self.present:
            self.settled[job.request.id] = job
        else:
            self.ended.add(job.request.id)
        self.move_buckets(job, tokens == 0, job.request.limit_tokens - tokens, now)

    def depart(self, job: Job) -> None:
        """The client has all it will get."""
        del self.present[job.request.id]
        if self.settled.pop(job.request.id, None):
            self.ended.add(job.request.id)

    def requeue(self, job: Job) -> None:
        """A running request never reached its engine: it waits again, in its old place."""
        self._stop(job, 0)
        self.present.pop(job.request.id, None)
        self._wait(job)

    def _wait(self, job: Job) -> None:
        self.waiting.setdefault(job.flow, {})[job.request.id] = self.queued[job.request.id] = job

    def _no_wait(self, job: Job) -> None:
        del self.waiting[job.flow][job.request.id], self.queued[job.request.id]

    def _stop(self, job: Job, cost: int) -> None:
        assert job.engine is not None
        del job.engine.jobs[job.request.id], self.running[job.request.id]
        self._serve(job, cost - job.charged)
        self.corrections.append((job, cost - job.charged))
        self.cost_max[job.flow] = max(self.cost_max[job.flow], cost)

    def _serve(self, job: Job, cost: int) -> None:
        self.served[job.line] += cost
        self.flow_served[job.flow] += cost
        self.cost_max[job.flow] = max(self.cost_max[job.flow], job.charged)

    def weight(self, tenant: str) -> int:
        """In steps of a thousandth."""
        return max(1, round(self.known[tenant].weight * WEIGHT_STEPS))

    def lines(self, pool: str) -> Iterator[Line]:
        """The classes of a pool."""
        return ((pool, c.rank) for c in self.specs[pool].classes)

    def runs(self, tenant: str) -> int:
        """How many of a tenant's requests run, clients that still read counted."""
        return sum(j.flow[2] == tenant for j in self.present.values())

    def competing(self, line: Line) -> list[Job]:
        """The least key of each flow of the class that its own and its tenant's `max_running` let start."""
        most = self.classes[line].max_running
        if most is not None and sum(j.line == line for j in self.running.values()) >= most:
            return []
        return [
            min(jobs.values(), key=lambda j: (j.key, j.request.id))
            for flow, jobs in self.waiting.items()
            if jobs and flow[:2] == line and not self.full(flow[2])
        ]

    def full(self, tenant: str) -> bool:
        """Whether the tenant runs as many as it may."""
        most = self.known[tenant].max_running
        return most is not None and self.runs(tenant) >= most

    def open_sites(self, pool: str) -> list[Site]:
        """The engines of a pool that may be given work."""
        return [s for s in self.sites.values() if s.pool == pool and s.up]

    def suits(self, site: Site, request: Request) -> bool:
        """Whether the engine's context is long enough, or none is longer."""
        contexts = [s.spec.context for s in self.open_sites(site.pool)]
        longest = request.max_tokens if None in contexts else max((c for c in contexts if c is not None), default=0)
        return site.spec.context is None or site.spec.context >= min(request.max_tokens, longest)

    def fits(self, site: Site, request: Request, prefill_tokens: int | None) -> bool:
        """Whether the three limits of an engine let the request start there now, by their definitions; one of them may be learned."""
        spec, jobs = site.spec, list(site.jobs.values())
        if spec.slots < 1 or not self.suits(site, request):
            return False
        if not jobs:
            return True
        if sequences(jobs) + request.sequences + self.kept(site, request, jobs)[0] > spec.slots:
            return False
        prefilling = sum(j.request.prompt_tokens for j in jobs if j.request.streams and not j.produced)
        if prefill_tokens is not None and prefilling and prefilling + request.prompt_tokens > prefill_tokens:
            return False
        return self._within(site, request, jobs, 0)

    def kept(self, site: Site, request: Request, jobs: list[Job]) -> tuple[int, int]:
        """How many slots and KV tokens the fast lane keeps from the request beside these, which may be short themselves."""
        spec, short = site.spec, [j for j in jobs if j.short]
        places = min(spec.lane_places, -(-spec.slots // LANE_SLOTS_PART)) if spec.slots >= LANE_SLOTS_MIN else 0
        if request.short or not places:
            return 0, 0
        tokens = int(spec.lane_kv * (spec.kv_tokens or 0))
        used = sum(j.request.prompt_tokens + spec.lane_output for j in short)
        return max(0, places - sequences(short)), max(0, tokens - used)

    def moments(self, hold: Hold) -> tuple[float, float]:
        """When what ran at the start of a hold is predicted to have made room: the first such end, and from which on it stays so."""
        assert hold.before is not None
        jobs = [j for j in hold.site.jobs.values() if j.moment in hold.before and j.request.streams]
        first, lasting = inf, 0.0
        for after in sorted({0, *(j.steps for j in jobs)}, reverse=True):
            rest = [j for j in jobs if j.steps > after]
            room = sequences(rest) + hold.request.sequences + self.kept(hold.site, hold.request, rest)[0] <= hold.site.spec.slots
            if hold.site.spec.slots and (not rest or (room and self._within(hold.site, hold.request, rest, after))):
                first = after
            elif lasting == 0.0:
                lasting = first
        return first, lasting or first

    def _within(self, site: Site, request: Request, jobs: list[Job], after: int) -> bool:
        """Whether these, so many steps from now, and the request will never hold more together than they may."""
        kv_tokens = site.spec.kv_tokens
        if kv_tokens is None:
            return True
        cap = int(kv_tokens * (KV_RATIO if request.rank == 0 else KV_RATIO * LOWER_RATIO)) - self.kept(site, request, jobs)[1]
        sizes = [(j.request.prompt_tokens + j.produced, j.steps - after, j.request.sequences) for j in jobs]
        held = [(tokens + after * count, steps * count, count) for tokens, steps, count in sizes]
        return peak([*held, (request.prompt_tokens, upper_of(request), request.sequences)]) <= cap


def sequences(jobs: Iterable[Job]) -> int:
    """How many slots these take."""
    return sum(j.request.sequences for j in jobs)


def upper_of(request: Request) -> int:
    """The output that is reserved for."""
    return max(request.upper_tokens, request.output_tokens)


def steps_of(request: Request) -> int:
    """The steps in which it comes."""
    return ceil(upper_of(request) / request.sequences)
