"""What may enter the backlog of a pool, and what a refused client is told about coming back.

Estimates of waiting divide the cost that is served before a request by the rate that its class can count on. Both are
known only after some completions; before, only counts and costs bound the backlog.
"""

from collections.abc import Sequence

from fairlane.core.flows import ClassQueue, Flow
from fairlane.core.places import Places
from fairlane.core.rate import ServiceRate
from fairlane.core.tenants import TenantState
from fairlane.core.values import BASIS_POINTS, Request, Shed
from fairlane.errors import Reason

RETURNING = 0.7  # of refused work comes back
CONTEXT_MARGIN = 4  # a prompt estimate is trusted to this factor: nearer to the context the engine itself decides


def unserved(request: Request, places: Places) -> Reason | None:
    """Why no engine of the pool can serve the request, however long it waits."""
    if not places.any_open:
        return Reason.NO_ENGINE
    if places.context is not None and request.longest_prompt > CONTEXT_MARGIN * places.context:
        return Reason.CONTEXT_LENGTH_EXCEEDED
    return None


def starts_at_once(request: Request, tenant: TenantState, queues: Sequence[ClassQueue], places: Places) -> bool:
    """Whether nothing that may start is ahead of the request, and an engine has room for it."""
    queue = queues[request.rank]
    free = queue.spec.max_running is None or queue.running < queue.spec.max_running
    if not free or tenant.full or any(q.backlogged for q in queues):
        return False
    return places.choose(request) is not None


def waits_too_long(wait_s: float, ttft_s: float, queue: ClassQueue) -> bool:
    """Whether a wait, or with it the time to the first token, is longer than the class allows."""
    spec = queue.spec
    return wait_s > spec.max_wait_s or (spec.ttft_slo_s is not None and wait_s + ttft_s > spec.ttft_slo_s)


def class_rate(queue: ClassQueue, queues: Sequence[ClassQueue], pool_rate: ServiceRate, now: float) -> float | None:
    """Cost per second that the class can count on while it waits, or None while the pool's rate is unknown.

    That is the greatest of what it was seen to get, its guarantee, and, if no more urgent class waits, what the guarantees of
    the others that wait leave of the pool.
    """
    rate = pool_rate.per_s(now)
    if rate is None:
        return None
    others = [q.spec for q in queues if q.backlogged and q is not queue]
    share = queue.spec.min_share
    if all(spec.rank > queue.spec.rank for spec in others):
        share = max(share, BASIS_POINTS - sum(spec.min_share for spec in others))
    return max(rate * share / BASIS_POINTS, queue.rate.per_s(now) or 0.0) or None


def cost_ahead(queue: ClassQueue, flow: Flow) -> int:
    """Cost served before a newcomer of this flow, at most: the class's backlog, or its own over its share of the class.

    The order between tenants gives a flow at least its weight's part, so the backlog of others counts only as far as it is
    served meanwhile.
    """
    weights = queue.waiting_weight + (0 if flow.waiting else flow.weight)
    own = flow.cost if flow.waiting else queue.cost // max(1, queue.queued)
    return min(queue.cost, own * weights // flow.weight)


def victims(queue: ClassQueue, newcomer: Flow, request: Request) -> list[Request] | None:
    """The waiting requests that give way to a newcomer in a full class, or None where it is the newcomer that is refused.

    That is so if its tenant has the most waiting cost per weight, the newcomer counted; else the newest entries of the tenants
    that have give way. None is evicted in vain: either the newcomer fits then, or nobody goes.
    """
    spec = queue.spec
    count, cost = queue.queued + 1, queue.cost + request.cost
    chosen: list[Request] = []
    left: dict[Flow, tuple[int, list[Request]]] = {}
    own = (newcomer.cost + request.cost) / newcomer.weight
    while count > spec.max_queued or (spec.max_queued_cost is not None and cost > spec.max_queued_cost):
        flow = max((f for f in queue.waiting_flows() if f is not newcomer), key=lambda f: _left(left, f) / f.weight, default=None)
        if flow is None or _left(left, flow) / flow.weight <= own:
            return None
        held, entries = left.get(flow) or (flow.cost, list(flow.waiting.values()))
        victim = entries.pop()
        left[flow] = held - victim.cost, entries
        chosen.append(victim)
        count, cost = count - 1, cost - victim.cost
    return chosen


def _left(left: dict[Flow, tuple[int, list[Request]]], flow: Flow) -> int:
    return left[flow][0] if flow in left else flow.cost


def newest(queue: ClassQueue) -> Request:
    """The waiting request that arrived last; only for a class with something waiting."""
    return max((next(reversed(f.waiting.values())) for f in queue.waiting_flows()), key=lambda r: r.id)


def shed(request: Request, queue: ClassQueue, reason: Reason, *, ahead: int, rate: float | None, now: float) -> Shed:
    """A refusal whose Retry-After comes from the work ahead and the class's rate; the random part is outside its bounds.

    Work that was refused lately and will come back counts as ahead (the shadow backlog), so that returning clients are
    spread over the time in which they can be served.
    """
    spec = queue.spec
    wait = (ahead + queue.shadow.add(RETURNING * request.cost, rate, now)) / rate if rate else 0.0
    base = min(max(wait, spec.retry_after_min_s), spec.retry_after_max_s)
    return Shed(request, reason, base, max(2.0, base / 2))
