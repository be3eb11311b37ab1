"""What may enter the backlog of a pool, and how long it will wait.

Estimates of waiting divide the cost that is served before a request by the rate that its class can count on. Both are
known only after some completions; before, only counts and costs bound the backlog.
"""

from collections.abc import Iterator, Sequence

from fairlane.core.flows import ClassQueue, Flow
from fairlane.core.places import Places
from fairlane.core.rate import ServiceRate
from fairlane.core.request import Request
from fairlane.core.values import BASIS_POINTS
from fairlane.errors import Reason

CONTEXT_MARGIN = 4  # a prompt estimate is trusted to this factor: nearer to the context the engine itself decides


def unserved(request: Request, places: Places) -> Reason | None:
    """Why no engine of the pool can serve the request, however long it waits."""
    if not places.open:
        return Reason.NO_ENGINE
    if places.context is not None and request.longest_prompt > CONTEXT_MARGIN * places.context:
        return Reason.CONTEXT_LENGTH_EXCEEDED
    return None


def class_rate(queue: ClassQueue, queues: Sequence[ClassQueue], pool_rate: ServiceRate, now: float) -> float | None:
    """Cost per second that the class can count on while it waits, or None while the pool's rate is unknown.

    That is the greatest of what it was seen to get, its guarantee, and, if no more urgent class waits, what the guarantees of
    the others that wait leave of the pool.
    """
    rate = pool_rate.per_s(now)
    if rate is None:
        return None
    left = BASIS_POINTS
    for other in queues:
        if other is not queue and other.backlogged:
            left -= other.spec.min_share if other.spec.rank > queue.spec.rank else BASIS_POINTS
    share = max(left, queue.spec.min_share)
    return max(rate * share / BASIS_POINTS, queue.rate.per_s(now) or 0.0)


def cost_ahead(queue: ClassQueue, flow: Flow) -> int:
    """Cost served before a newcomer of this flow, at most: the class's backlog, or its own over its share of the class.

    The order between tenants gives a flow at least its weight's part, so the backlog of others counts only as far as it is
    served meanwhile. The newcomer's own turn counts as one request of the class: what joins the backlog never lowers the result.
    """
    weights = queue.waiting_weight + (0 if flow.waiting else flow.weight)
    return min(queue.cost, (flow.cost + queue.served_cost // max(1, queue.served)) * weights // flow.weight)


def victims(queue: ClassQueue, newcomer: Flow, request: Request) -> list[Request] | None:
    """The waiting requests that give way to a newcomer in a full class, or None where it is the newcomer that is refused.

    That is so if its tenant has the most waiting cost per weight, the newcomer counted; else the newest entries of the tenants
    that have give way. None is evicted in vain: either the newcomer fits then, or nobody goes.
    """
    spec = queue.spec
    count, cost = queue.queued + 1, queue.cost + request.cost
    own = (newcomer.cost + request.cost) / newcomer.weight
    chosen: list[Request] = []
    costs: dict[Flow, int] = {}
    entries: dict[Flow, Iterator[Request]] = {}
    while count > spec.max_queued or (spec.max_queued_cost is not None and cost > spec.max_queued_cost):
        costs = costs or {f: f.cost for f in queue.waiting_flows if f is not newcomer}
        flow = max(costs, key=lambda f: costs[f] / f.weight, default=None)
        if flow is None or costs[flow] / flow.weight <= own:
            return None
        victim = next(entries.setdefault(flow, reversed(flow.waiting.values())))
        costs[flow] -= victim.cost
        chosen.append(victim)
        count, cost = count - 1, cost - victim.cost
    return chosen
