"""The whole scheduler: all pools, and what spans them (tenants' limits, the global bound on waiting requests).

Feed it events, then call `poll(now)` and carry out what it returns. Each request gets exactly one terminal answer: a
`Shed`, a `cancel` by the caller, or a `Start` that the caller ends with `settle` (the engine's last byte: the place is
free) and `depart` (the client's last byte: the tenant may run another).
"""

from collections.abc import Callable, Iterable, Sequence
from math import inf

from fairlane.core.pool import PoolScheduler
from fairlane.core.protocols import Limit, Placement, Policy
from fairlane.core.request import Decision, Request, Shed
from fairlane.core.tenants import TenantState
from fairlane.core.values import ENDED, RUNNING, CostWeights, Engine, Outcome, PoolSpec, PriorityClass, Usage
from fairlane.errors import RULES, Reason

CHARGE_STEP = 64  # output tokens


class Scheduler:
    """Decides which request runs next, which waits, and which is told at once to come back."""

    def __init__(
        self,
        pools: Iterable[PoolSpec],
        make_policy: Callable[[PoolSpec], Policy],
        make_limit: Callable[[Engine], Limit],
        now: float,
        *,
        make_placement: Callable[[], Placement],
        max_queued: int = 200_000,
        weights: CostWeights = CostWeights(),  # noqa: B008 - frozen
    ) -> None:
        self.pools = {p.name: PoolScheduler(p, make_policy(p), make_limit, make_placement(), now) for p in pools}
        self.tenants: dict[str, TenantState] = {}
        self.weights = weights
        self._max_queued = max_queued
        self._decided: list[Decision] = []

    def submit(self, request: Request, now: float) -> None:
        """Takes a new request: charges its tenant's buckets and starts it or puts it into the backlog, or sheds it."""
        weights, pool, tenant = self.weights, self.pools[request.pool], self.tenants.get(request.tenant.name)
        if tenant is None:
            tenant = self.tenants[request.tenant.name] = TenantState(request.tenant, now)
        elif tenant.spec is not request.tenant:
            tenant.reconfigure(request.tenant, now)
        request.cost = weights.input * request.prompt_tokens + weights.output * request.output_tokens or 1
        if request.upper_tokens < request.output_tokens:  # noqa: PLR1730 - max() is slow
            request.upper_tokens = request.output_tokens
        queue = pool.queues[request.rank]
        slo_s, wait_s = queue.spec.ttft_slo_s, queue.spec.max_wait_s
        request.key = queue.order.key(request, queue.spec)
        request.due = None if slo_s is None else request.arrived_at + slo_s
        request.deadline = request.arrived_at + (wait_s if slo_s is None or slo_s > wait_s else slo_s)
        shed = tenant.refusal(request, now)
        if shed is None and not pool.start_at_once(request, tenant, now, self._decided):
            shed = self._refusal(request, pool, tenant, now)
            if shed is None:
                pool.add(request, tenant)
        if shed is None:
            tenant.charge(request, now)
        else:
            request.state = ENDED
            self._decided.append(shed)

    def cancel(self, request: Request, now: float) -> None:
        """The client of a waiting request left: it is never sent, and what it was charged is returned."""
        self.pools[request.pool].remove(request, now)

    def progress(self, request: Request, produced: int, now: float) -> None:
        """A started request has produced so many output tokens so far; the first call tells that its prompt is prefilled.

        What goes beyond the prediction is charged as it goes, in steps.
        """
        if request.state is not RUNNING or produced < 1:
            return
        extra = (produced - request.output_tokens) // CHARGE_STEP * CHARGE_STEP - request.charged_beyond
        if extra > 0:
            request.charged_beyond += extra
        self.pools[request.pool].progress(request, produced, self.weights.output * extra if extra > 0 else 0, now)

    def settle(self, request: Request, usage: Usage | None, outcome: Outcome, now: float) -> None:
        """A started request is done at its engine. `usage` is what it consumed there (None: nothing). Idempotent."""
        if request.state is not RUNNING:
            return
        tokens, cost = (usage.tokens, self.weights.cost(usage)) if usage is not None else (0, 0)
        request.flow.tenant.settle(request, tokens, now)
        self.pools[request.pool].settle(request, cost, outcome, now)

    def depart(self, request: Request) -> bool:
        """The client has its last byte, or left: the tenant may run another. Idempotent. Returns whether one may start now."""
        if not request.in_tenant:
            return False
        request.in_tenant = False
        return request.flow.tenant.leave()

    def requeue(self, request: Request) -> None:
        """A started request never reached its engine, or found it full: it waits again in its old place, charges undone."""
        if request.state is RUNNING:
            self.depart(request)
            self.pools[request.pool].requeue(request)

    def engine_report(self, pool: str, engine: str, *, up: bool, spec: Engine | None = None) -> None:
        """Whether an engine can be given work, and what it says of itself."""
        scheduler = self.pools[pool]
        scheduler.places.report(engine, up=up, spec=spec)
        scheduler.order.resize(scheduler.places.slots)

    def reconfigure(self, pool: str, classes: Sequence[PriorityClass], engines: Iterable[Engine] | None = None) -> None:
        """Takes new numbers for the classes of a pool and, where given, other engines. Nothing that waits or runs is touched."""
        scheduler = self.pools[pool]
        for queue, spec in zip(scheduler.queues, classes, strict=True):
            queue.spec = spec
        scheduler.order.reconfigure(classes)
        if engines is not None:
            scheduler.places.reconfigure(engines)
            scheduler.order.resize(scheduler.places.slots)

    def evict_all(self, reason: Reason, now: float) -> None:
        """Sheds everything that waits; what runs goes on."""
        for pool in self.pools.values():
            for request in [r for queue in pool.queues for f in queue.waiting_flows for r in f.waiting.values()]:
                self._decided.append(pool.evict(request, reason, now))

    def poll(self, now: float) -> Sequence[Decision]:
        """The decisions that follow from all that was fed; each is returned once."""
        out, self._decided = self._decided, []
        decided = -1.0
        while len(out) > decided:
            decided = len(out) if len(self.pools) > 1 else inf  # a start that fills its tenant changes the pools before, too
            for pool in self.pools.values():
                if pool.queued or pool.pending:
                    pool.dispatch(now, out)
        return out

    def wake_at(self) -> float | None:
        """When `poll` has something to do even if nothing is fed, or None."""
        deadlines = [pool.deadlines.first().deadline for pool in self.pools.values() if pool.queued]
        return min(deadlines) if deadlines else None

    @property
    def queued(self) -> int:
        """Requests waiting in all pools."""
        return sum(p.queued for p in self.pools.values())

    def _refusal(self, request: Request, pool: PoolScheduler, tenant: TenantState, now: float) -> Shed | None:
        refused = pool.admit(request, tenant, now, self._decided)
        if refused is None and self.queued >= self._max_queued:
            refused = self._displace_lower(request, now)
        if refused is None:
            return None
        if not RULES[refused].retryable:
            return Shed(request, refused)
        return pool.shed(request, pool.queues[request.rank].flow(tenant), refused, now)

    def _displace_lower(self, request: Request, now: float) -> Reason | None:
        """The global bound: the newest entry of the least urgent class gives way, if that class is below the newcomer's."""
        queue, pool = max(((q, p) for p in self.pools.values() for q in p.queues if q.queued), key=lambda qp: qp[0].spec.rank)
        if queue.spec.rank <= request.rank:
            return Reason.QUEUE_FULL
        newest = max((next(reversed(f.waiting.values())) for f in queue.waiting_flows), key=lambda r: r.id)
        self._decided.append(pool.evict(newest, Reason.DISPLACED, now))
        return None
