"""The scheduler of one pool: bounds at arrival, order at dispatch, correction at the end.

Order of decisions at dispatch: class (the policy), tenant (`flows`), request (its static key), engine (`places`). If any
backlogged head fits, something starts, unless a hold or a `max_running` forbids it. Nothing waits while the engines are
empty.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from math import inf

from fairlane.core import bounds
from fairlane.core.flows import ClassQueue, Clock, Flow, Waiting
from fairlane.core.places import EngineState, Places
from fairlane.core.protocols import Limit, Placement, Policy
from fairlane.core.rate import ServiceRate
from fairlane.core.request import Decision, Request, Shed, Start
from fairlane.core.tenants import TenantState
from fairlane.core.values import ENDED, WAITING, Engine, Outcome, PoolSpec
from fairlane.errors import Reason

RETURNING = 0.7  # of refused work comes back
PREFILL_PART = 0.5  # of the most urgent objective may be spent on prompts that are ahead at an engine, where no number is set


class PoolScheduler:
    """Waiting and running requests of one pool."""

    def __init__(self, spec: PoolSpec, policy: Policy, make_limit: Callable[[Engine], Limit], placement: Placement, now: float) -> None:
        self.name, self.holds = spec.name, spec.holds
        self.order = policy.classes
        clocks = [Clock()] * len(spec.classes) if policy.tenants.shared_clock else [Clock() for _ in spec.classes]
        self.queues = [ClassQueue(c, policy.tenants, clock, now) for c, clock in zip(spec.classes, clocks, strict=True)]
        self.placement = placement
        self.places = Places(spec.engines, make_limit, placement)
        self.rate = ServiceRate(now)
        self.queued = 0
        self.pending: list[Request] = []  # heads that were left waiting and might have started, in order
        self.deadlines = Waiting()

    def start_at_once(self, request: Request, tenant: TenantState, now: float, out: list[Decision]) -> bool:
        """Whether nothing is ahead of a newcomer and there is a place, so that no bound concerns it: then it starts.

        All books are as if it had waited for the next dispatch, and if it is late that is where it is told.
        """
        queue, places = self.queues[request.rank], self.places
        if self.pending or (self.queued and any(q.backlogged for q in self.queues)) or queue.full or tenant.full:
            return False
        engine = places.choose(request) if bounds.unserved(request, places) is None else None
        if engine is None or self.order.keeps(request.rank):
            return False
        if request.deadline <= now or self.placement.is_late(request, places.open, now):
            self.add(request, tenant)
            return True
        if not queue.entered:
            self.order.enter(request.rank)
        request.started_at = now
        self.order.charge(request)
        queue.start_at_once(request, queue.flow(tenant))
        out.append(self._run(request, engine, now))
        return True

    def admit(self, request: Request, tenant: TenantState, now: float, out: list[Decision]) -> Reason | None:
        """Makes room for a newcomer and returns None, or returns why it may not wait. Evictions for it go to `out`.

        In a full class the newcomer is refused only if its tenant has the most waiting cost per weight; else the newest entry
        of the tenant that has gives way. So one tenant cannot fill a class.
        """
        queue = self.queues[request.rank]
        if (reason := bounds.unserved(request, self.places)) is not None:
            return reason
        most = queue.spec.max_queued_cost
        if most is not None and request.cost > most:
            return Reason.REQUEST_OVER_LIMIT  # it can never wait
        limit = tenant.spec.max_queued
        if limit is not None and tenant.queued >= limit:
            return Reason.TENANT_QUEUE_FULL
        flow = queue.flow(tenant)
        if queue.cost > queue.spec.max_wait_s * (queue.rate.per_s(now) or 0.0):  # else it is short, whatever else the class counts on
            rate = bounds.class_rate(queue, self.queues, self.rate, now)
            if rate and bounds.cost_ahead(queue, flow) > queue.spec.max_wait_s * rate:
                return Reason.WAIT_TOO_LONG
        victims = bounds.victims(queue, flow, request)
        out += [self.evict(victim, Reason.DISPLACED, now) for victim in victims or ()]
        return Reason.QUEUE_FULL if victims is None else None

    def add(self, request: Request, tenant: TenantState) -> None:
        """Puts a request into the backlog."""
        queue = self.queues[request.rank]
        queue.add(request, queue.flow(tenant))
        tenant.queued += 1
        self.queued += 1
        self.deadlines.add(request.deadline, request, self.queued)

    def remove(self, request: Request, now: float) -> None:
        """Takes a request out, if it waits, and returns all it was charged."""
        if request.state is not WAITING:
            return
        tenant = request.flow.tenant
        request.state = ENDED
        self.queues[request.rank].remove(request)
        self.queued -= 1
        tenant.queued -= 1
        tenant.settle(request, 0, now)

    def evict(self, request: Request, reason: Reason, now: float) -> Shed:
        """Takes a waiting request out and tells its client."""
        flow = request.flow
        self.remove(request, now)
        return self.shed(request, flow, reason, now)

    def shed(self, request: Request, flow: Flow, reason: Reason, now: float) -> Shed:
        """A refusal whose Retry-After comes from the work ahead and the class's rate; the random part is outside its bounds.

        Work that was refused lately and will come back counts as ahead (the shadow backlog), so that returning clients are
        spread over the time in which they can be served.
        """
        queue = self.queues[request.rank]
        ahead = bounds.cost_ahead(queue, flow)
        queue.forget(flow)
        spec, rate = queue.spec, bounds.class_rate(queue, self.queues, self.rate, now)
        wait = 0.0 if rate is None else inf  # at rate 0
        if rate:
            wait = (ahead + queue.shadow.add(RETURNING * request.cost, rate, now)) / rate
        base = min(max(wait, spec.retry_after_min_s), spec.retry_after_max_s)
        return Shed(request, reason, base, max(2.0, base / 2))

    def dispatch(self, now: float, out: list[Decision]) -> None:
        """Evicts what has waited as long as it may, starts what may start, in order, and brings the busy clocks up to date."""
        late = Reason.WAIT_EXPIRED if self.places.open else Reason.NO_ENGINE
        while self.queued and (first := self.deadlines.first()).deadline <= now:
            out.append(self.evict(first, late, now))
        while (heads := self._heads(now, out)) and (started := self._start_first(heads, now)) is not None:
            out.append(started)
        served = bool(self.places.open)
        for queue in self.queues:
            queue.rate.set_backlogged(served and queue.entered, now)
        self.pending = heads
        self.rate.set_backlogged(served and bool(heads), now)

    def settle(self, request: Request, cost: int, outcome: Outcome, now: float) -> None:
        """Frees the request's place and corrects every book to its true cost."""
        queue = self.queues[request.rank]
        if outcome is Outcome.FAILED:
            self.rate.failed(now)
            queue.rate.failed(now)
        elif self.rate.busy_s(now) > request.busy_at_start:  # else nothing waited while it ran
            run_s = now - request.started_at
            self.rate.served(cost, request.busy_at_start, run_s, now)
            queue.rate.served(cost, request.class_busy_at_start, run_s, now)
        self._stop(request, cost)
        request.cost = cost
        request.state = ENDED

    def progress(self, request: Request, produced: int, extra_cost: int, now: float) -> None:
        """A running request has produced output, `extra_cost` of it beyond what it was charged."""
        request.engine.limit.progress(request, produced)
        if request.first_token_at is None:
            request.first_token_at = now
            self.placement.first_token(request, now)
            slo_s = next((q.spec.ttft_slo_s for q in self.queues if q.spec.ttft_slo_s is not None), None)
            if slo_s is not None and request.engine.spec.prefill_tokens is None:
                request.engine.limit.prefill_tokens = self.placement.prefills(request.engine, PREFILL_PART * slo_s)
        if extra_cost:
            self.order.correct(request, extra_cost)
            self.queues[request.rank].recharge(request, extra_cost)
            request.cost += extra_cost

    def requeue(self, request: Request) -> None:
        """Undoes a start that no engine took: the request waits again in its old place."""
        tenant = request.flow.tenant
        self._stop(request, 0)
        self.add(request, tenant)
        request.flow.waiting = {request.id: request} | request.flow.waiting  # it came before what waits: that gives way first

    def _stop(self, request: Request, cost: int) -> None:
        delta = cost - request.cost
        self.order.correct(request, delta)
        self.order.leave(request.rank)
        self.queues[request.rank].stop(request, delta)
        self.places.release(request)

    def _heads(self, now: float, out: list[Decision]) -> list[Request]:
        heads: list[Request] = []
        promoted: list[int] = []
        for queue in self.queues:
            head, spec = queue.head(), queue.spec
            while head is not None and self.placement.is_late(head, self.places.open, now):
                out.append(self.evict(head, Reason.DEADLINE_MISSED, now))
                head = queue.head()
            if head is not None:
                if not queue.entered:
                    self.order.enter(spec.rank)
                heads.append(head)
                if spec.promote_after_s is not None and now - head.arrived_at >= spec.promote_after_s:
                    promoted.append(spec.rank)
            queue.entered = head is not None
        self.places.review_hold(r for r in heads if not self.order.keeps(r.rank))
        if promoted:
            heads.sort(key=lambda r: (r.rank - (r.rank in promoted), r.arrived_at))
        return heads

    def _start_first(self, heads: list[Request], now: float) -> Start | None:
        if self.places.full:
            return None
        skipped: list[Request] = []
        for head in chain(self.order.order(heads), self._short()):
            if self.order.keeps(head.rank):
                continue
            engine = self.places.choose(head)
            if engine is not None:
                head.started_at = now
                self.order.charge(head)
                self.queues[head.rank].start(head)
                self.queued -= 1
                head.flow.tenant.queued -= 1
                started = self._run(head, engine, now)
                for other in skipped if head in heads else skipped[:1]:  # the lane passes all, and may delay the first
                    self._note_bypass(other, head.cost, now)
                return started
            skipped.append(head)
        return None

    def _short(self) -> Iterator[Request]:
        """The first short request of each class that holds no engine: the fast lane may have room for it though none for heads."""
        by = self.places.held_by
        for queue in self.queues:
            if not queue.full and (by is None or by.rank != queue.spec.rank) and (request := queue.short.first_able()) is not None:
                yield request

    def _run(self, request: Request, engine: EngineState, now: float) -> Start:
        self.places.take(request, engine, now)
        request.flow.tenant.enter()
        request.in_tenant = True
        request.busy_at_start = self.rate.busy_s(now)
        request.class_busy_at_start = self.queues[request.rank].rate.busy_s(now)
        return Start(request, engine.spec.name)

    def _note_bypass(self, head: Request, cost: int, now: float) -> None:
        head.bypassed += cost
        bound, rate, places = 2.0 * self.queues[head.rank].cost_max, self.rate.per_s(now), self.places
        if rate is not None:
            bound = min(bound, rate * (head.deadline - now) / 2)
        by = places.held_by
        if head.bypassed >= bound and self.holds and (by is None or (self.order.is_owed(head.rank) > self.order.is_owed(by.rank))):
            places.hold(head)
