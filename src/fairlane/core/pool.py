"""The scheduler of one pool: bounds at arrival, order at dispatch, correction at the end.

Order of decisions at dispatch: class (the policy), tenant (`flows`), request (its static key), engine (`places`). If any
backlogged head fits, something starts, unless a hold or a `max_running` forbids it. Nothing waits while the engines are
empty.
"""

from collections.abc import Callable

from fairlane.core import bounds
from fairlane.core.deadlines import Deadlines
from fairlane.core.flows import ClassQueue, Clock, Flow
from fairlane.core.places import EngineState, Places
from fairlane.core.protocols import Limit, Policy
from fairlane.core.rate import FirstTokenTime, ServiceRate
from fairlane.core.tenants import TenantState
from fairlane.core.values import Decision, Engine, Outcome, PoolSpec, Request, Shed, Start, State
from fairlane.errors import Reason


class PoolScheduler:
    """Waiting and running requests of one pool."""

    def __init__(self, spec: PoolSpec, policy: Policy, make_limit: Callable[[Engine], Limit], now: float) -> None:
        self.name = spec.name
        self.order = policy.classes
        shared = Clock()
        clocks = (shared if policy.tenants.shared_clock else Clock() for _ in spec.classes)
        self.queues = [ClassQueue(c, policy.tenants, clock, now) for c, clock in zip(spec.classes, clocks, strict=True)]
        self.places = Places(spec.engines, make_limit)
        self.rate = ServiceRate(now)
        self.ttft = FirstTokenTime()
        self.queued = 0
        self._busy = False  # something was left waiting that may start
        self._entered = [False] * len(self.queues)
        self.deadlines = Deadlines()

    def admit(self, request: Request, tenant: TenantState, now: float, out: list[Decision]) -> Reason | None:
        """Makes room for a newcomer and returns None, or returns why it is refused. Evictions for it go to `out`.

        In a full class the newcomer is refused only if its tenant has the most waiting cost per weight; else the newest entry
        of the tenant that has gives way. So one tenant cannot fill a class.
        """
        queue = self.queues[request.rank]
        reason = bounds.unserved(request, self.places)
        if reason is not None or bounds.starts_at_once(request, tenant, self.queues, self.places):
            return reason
        most = queue.spec.max_queued_cost
        if most is not None and request.cost > most:
            return Reason.REQUEST_OVER_LIMIT  # it can never wait
        limit = tenant.spec.max_queued
        if limit is not None and tenant.queued >= limit:
            return Reason.TENANT_QUEUE_FULL
        rate = self._class_rate(queue, now) if queue.queued else None
        wait_s = bounds.cost_ahead(queue, queue.flow(tenant)) / rate if rate else 0.0
        if bounds.waits_too_long(wait_s, self._ttft_s(request), queue):
            return Reason.WAIT_TOO_LONG
        victims = bounds.victims(queue, queue.flow(tenant), request)
        out += [self.evict(victim, Reason.DISPLACED, now) for victim in victims or ()]
        return Reason.QUEUE_FULL if victims is None else None

    def add(self, request: Request, tenant: TenantState) -> None:
        """Puts a request into the backlog."""
        queue = self.queues[request.rank]
        queue.add(request, queue.flow(tenant))
        tenant.queued += 1
        self.queued += 1
        self.deadlines.add(request, self.queued)

    def remove(self, request: Request, now: float) -> None:
        """Takes a waiting request out and returns all it was charged."""
        tenant = request.flow.tenant
        self.queues[request.rank].remove(request)
        self.queued -= 1
        tenant.queued -= 1
        tenant.settle(request, 0, now)
        request.state = State.ENDED

    def evict(self, request: Request, reason: Reason, now: float) -> Shed:
        """Takes a waiting request out and tells its client."""
        flow = request.flow
        self.remove(request, now)
        return self.shed(request, flow, reason, now)

    def shed(self, request: Request, flow: Flow, reason: Reason, now: float) -> Shed:
        """A refusal with the time after which coming back makes sense."""
        queue = self.queues[request.rank]
        ahead = bounds.cost_ahead(queue, flow)
        queue.forget(flow)
        return bounds.shed(request, queue, reason, ahead=ahead, rate=self._class_rate(queue, now), now=now)

    def dispatch(self, now: float, out: list[Decision]) -> None:
        """Starts whatever may start, in order, and brings the busy clocks up to date."""
        if not self.queued and not self._busy:
            return
        while (heads := self._heads(now, out)) and (started := self._start_first(heads, now)):
            out.append(started)
        served = self.places.any_open
        for queue, entered in zip(self.queues, self._entered, strict=True):
            queue.rate.set_backlogged(served and entered, now)
        self._busy = any(self._entered)
        self.rate.set_backlogged(served and self._busy, now)

    def expire(self, now: float, out: list[Decision]) -> None:
        """Evicts what has waited as long as it may."""
        reason = Reason.WAIT_EXPIRED if self.places.any_open else Reason.NO_ENGINE
        while (late := self.deadlines.pop(now)) is not None:
            out.append(self.evict(late, reason, now))

    def settle(self, request: Request, cost: int, outcome: Outcome, now: float) -> None:
        """Frees the request's place and corrects every book to its true cost."""
        queue = self.queues[request.rank]
        if outcome is Outcome.FAILED:
            self.rate.failed(now)
            queue.rate.failed(now)
        else:
            run_s = now - request.started_at
            self.rate.served(cost, request.busy_at_start, run_s, now)
            queue.rate.served(cost, request.class_busy_at_start, run_s, now)
        self._stop(request, cost)
        request.state = State.ENDED

    def progress(self, request: Request, produced: int, extra_cost: int, now: float) -> None:
        """A running request has produced output, `extra_cost` of it beyond what it was charged."""
        request.engine.limit.progress(request, produced)
        if request.first_token_at is None:
            request.first_token_at = now
            self.ttft.observe(request.prefill_ahead, now - request.started_at)
        if extra_cost:
            self.order.correct(request, extra_cost)
            self.queues[request.rank].recharge(request, extra_cost)
            request.cost += extra_cost

    def requeue(self, request: Request) -> None:
        """Undoes a start that never reached an engine: the request waits again in its old place."""
        tenant = request.flow.tenant
        cost = request.cost
        self._stop(request, 0)
        request.cost = cost
        self.add(request, tenant)

    def _stop(self, request: Request, cost: int) -> None:
        delta = cost - request.cost
        self.order.correct(request, delta)
        self.queues[request.rank].stop(request, delta)
        self.places.release(request)
        request.cost = cost

    @property
    def _promotes(self) -> bool:
        return any(q.spec.promote_after_s is not None for q in self.queues)

    def _heads(self, now: float, out: list[Decision]) -> list[Request]:
        heads: list[Request] = []
        if not self.queued:
            self._entered = [False] * len(self.queues)
            self.places.review_hold(heads)
            return heads
        for rank, queue in enumerate(self.queues):
            if queue.spec.ttft_slo_s is not None:
                self._shed_late(queue, now, out)
            backlogged = queue.backlogged
            if backlogged:
                if not self._entered[rank]:
                    self.order.enter(rank)
                heads.append(queue.head())
            self._entered[rank] = backlogged
        self.places.review_hold(heads)
        if self._promotes:
            heads.sort(key=lambda r: (r.rank - self._promoted(r, now), r.arrived_at))
        return heads

    def _promoted(self, request: Request, now: float) -> bool:
        after = self.queues[request.rank].spec.promote_after_s
        return after is not None and now - request.arrived_at >= after

    def _shed_late(self, queue: ClassQueue, now: float, out: list[Decision]) -> None:
        """Evicts heads whose first token would come after their deadline, before any engine works for them."""
        while queue.backlogged:
            head = queue.head()
            if not bounds.waits_too_long(now - head.arrived_at, self._ttft_s(head), queue):
                return
            out.append(self.evict(head, Reason.DEADLINE_MISSED, now))

    def _class_rate(self, queue: ClassQueue, now: float) -> float | None:
        return bounds.class_rate(queue, self.queues, self.rate, now)

    def _ttft_s(self, request: Request) -> float:
        return self.ttft.seconds(self.places.prefilling + request.prompt_tokens)

    def _start_first(self, heads: list[Request], now: float) -> Start | None:
        skipped: list[Request] = []
        for head in self.order.order(heads):
            engine = self.places.choose(head)
            if engine is not None:
                self._start(head, engine, now)
                for other in skipped:
                    self._note_bypass(other, head.cost, now)
                return Start(head, engine.spec.name)
            skipped.append(head)
        return None

    def _start(self, request: Request, engine: EngineState, now: float) -> None:
        queue = self.queues[request.rank]
        tenant = request.flow.tenant
        self.order.charge(request)
        queue.start(request)
        request.prefill_ahead = engine.limit.prefilling + request.prompt_tokens
        self.places.take(request, engine)
        self.queued -= 1
        tenant.queued -= 1
        tenant.enter()
        request.in_tenant = True
        request.state = State.RUNNING
        request.started_at = now
        request.busy_at_start = self.rate.busy_s(now)
        request.class_busy_at_start = queue.rate.busy_s(now)

    def _note_bypass(self, head: Request, cost: int, now: float) -> None:
        head.bypassed += cost
        bound = 2.0 * self.queues[head.rank].cost_max
        rate = self.rate.per_s(now)
        if rate is not None:
            bound = min(bound, rate * (head.deadline - now) / 2)
        places = self.places
        if head.bypassed < bound or places.held_for == head.rank:
            return
        if places.held_for is None or (self.order.is_owed(head.rank) and not self.order.is_owed(places.held_for)):
            places.hold(head)
