"""The waiting requests of one class: a flow for each tenant, and whose turn it is.

Each flow has a tag: its served cost over its weight, in integers of cost / (weight · TAG_UNIT). The clock v is the tag of the
flow served last. A flow that becomes backlogged is lifted to v, so idle time earns nothing, and debt is kept. Corrections
move the tag of the flow that was charged, not below its last lift. What the turn of a flow is, its tag or something else,
and the order inside a flow is the policy's (`TenantOrder`); keys inside a flow never change, so a heap is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from fairlane.core.rate import ServiceRate, Shadow
from fairlane.core.values import PriorityClass, Request, State

if TYPE_CHECKING:
    from fairlane.core.protocols import TenantOrder
    from fairlane.core.tenants import TenantState

WEIGHT_STEPS = 1000  # weights are kept to a thousandth
TAG_UNIT = WEIGHT_STEPS << 16
SLACK = 16  # stale heap entries tolerated before a heap is rebuilt


class Flow:
    """One tenant's waiting requests in one class of one pool."""

    __slots__ = ("cost", "edge", "heap", "queue", "running", "stamp", "tag", "tenant", "waiting", "weight")

    def __init__(self, tenant: TenantState, queue: ClassQueue) -> None:
        self.tenant = tenant
        self.queue = queue
        self.weight = max(1, round(tenant.spec.weight * WEIGHT_STEPS))
        self.tag = self.edge = queue.turns.floor()
        self.stamp = 0  # of the one valid entry in the class's heap; 0: none
        self.waiting: dict[int, Request] = {}  # by arrival
        self.heap: list[tuple[float, int, Request]] = []
        self.cost = 0  # of what waits
        self.running = 0

    def push(self, request: Request) -> None:
        """Adds a waiting request."""
        self.waiting[request.id] = request
        self.cost += request.cost
        heappush(self.heap, (request.key, request.id, request))

    def remove(self, request: Request) -> None:
        """Takes a request out; its heap entry is dropped when it surfaces, or when such entries pile up."""
        del self.waiting[request.id]
        self.cost -= request.cost
        if len(self.heap) > 2 * len(self.waiting) + SLACK:
            self.heap = [(r.key, r.id, r) for r in self.waiting.values()]
            heapify(self.heap)

    def head(self) -> Request:
        """The request with the least key; only for a flow with something waiting."""
        while self.heap[0][2].id not in self.waiting:
            heappop(self.heap)
        return self.heap[0][2]

    def charge(self, request: Request) -> None:
        """Books the cost of a request that starts."""
        request.flow_charge = request.cost * TAG_UNIT // self.weight
        self.tag += request.flow_charge

    def correct(self, request: Request, delta: int) -> None:
        """Books a difference to what the request was charged, at the weight it was charged with."""
        difference = request.flow_charge * delta // request.cost
        request.flow_charge += difference
        self.tag = max(self.tag + difference, self.edge)


class Clock:
    """The virtual time v of one class, or of several that share it."""

    __slots__ = ("v",)

    def __init__(self) -> None:
        self.v = 0


class Turns:
    """The flows of one class that have something to start, in the order of their turns."""

    __slots__ = ("_heap", "_stamps", "_turn", "clock", "flows")

    def __init__(self, turn: Callable[[Flow], float], clock: Clock) -> None:
        self.clock = clock
        self.flows = 0  # that compete
        self._turn = turn
        self._heap: list[tuple[float, int, Flow]] = []
        self._stamps = 0

    def floor(self) -> int:
        """The clock, or the tag of the flow whose turn it is where refunds have taken that below the clock."""
        return min(self.clock.v, self.first().tag) if self.flows else self.clock.v

    def enter(self, flow: Flow) -> None:
        """The flow has something to start: it competes, lifted to the floor."""
        floor = self.floor()
        flow.edge = max(flow.edge, floor)
        flow.tag = max(flow.tag, floor)
        self.flows += 1
        self.renew(flow)

    def leave(self, flow: Flow) -> None:
        """The flow has nothing that may start now."""
        if flow.stamp:
            flow.stamp = 0
            self.flows -= 1

    def renew(self, flow: Flow) -> None:
        """The flow competes with its present turn; an older entry of it is dropped when it surfaces."""
        self._stamps += 1
        flow.stamp = self._stamps
        heappush(self._heap, (self._turn(flow), flow.stamp, flow))
        if len(self._heap) > 2 * self.flows + SLACK:
            self._heap = [entry for entry in self._heap if entry[2].stamp == entry[1]]
            heapify(self._heap)

    def first(self) -> Flow:
        """The flow whose turn it is; only while one competes."""
        heap = self._heap
        while heap[0][2].stamp != heap[0][1]:
            heappop(heap)
        return heap[0][2]


class ClassQueue:
    """The backlog of one class of one pool, with its counters."""

    def __init__(self, spec: PriorityClass, order: TenantOrder, clock: Clock, now: float) -> None:
        self.spec = spec
        self.order = order
        self.flows: dict[str, Flow] = {}
        self.turns = Turns(order.turn, clock)
        self.queued = 0
        self.cost = 0  # of what waits
        self.running = 0
        self.served_cost = 0
        self.cost_max = 0  # largest cost seen lately
        self.waiting_weight = 0  # of flows with something waiting
        self.rate = ServiceRate(now)
        self.shadow = Shadow(now)

    @property
    def backlogged(self) -> bool:
        """Whether something waits that its own and its tenant's `max_running` let start."""
        return self.turns.flows > 0 and (self.spec.max_running is None or self.running < self.spec.max_running)

    def flow(self, tenant: TenantState) -> Flow:
        """The tenant's flow, made if it has none."""
        flow = self.flows.get(tenant.spec.name)
        if flow is None:
            flow = self.flows[tenant.spec.name] = Flow(tenant, self)
        return flow

    def waiting_flows(self) -> Iterator[Flow]:
        """The flows that have something waiting."""
        return (f for f in self.flows.values() if f.waiting)

    def head(self) -> Request:
        """The head of the flow whose turn it is; only for a backlogged class."""
        return self.turns.first().head()

    def add(self, request: Request, flow: Flow) -> None:
        """Puts a request into the backlog of its flow."""
        request.flow = flow
        request.state = State.WAITING
        request.key = self.order.key(request, self.spec)
        if not flow.waiting:
            flow.tenant.flows[flow] = None
            self.waiting_weight += flow.weight
        flow.push(request)
        self.queued += 1
        self.cost += request.cost
        self.cost_max = max(self.cost_max, request.cost)
        if not flow.stamp and not flow.tenant.full:
            self.turns.enter(flow)
        elif flow.stamp and self.order.by_head and flow.head() is request:
            self.turns.renew(flow)

    def remove(self, request: Request) -> None:
        """Takes a waiting request out, whether it starts or ends."""
        flow = request.flow
        flow.remove(request)
        self.queued -= 1
        self.cost -= request.cost
        if not flow.waiting:
            self.turns.leave(flow)
            flow.tenant.flows.pop(flow, None)
            self.waiting_weight -= flow.weight
            self.forget(flow)
        elif flow.stamp and self.order.by_head:
            self.turns.renew(flow)

    def start(self, request: Request) -> None:
        """Moves a request from waiting to running: the clock to its flow's tag, the tag by its cost."""
        flow = request.flow
        clock = self.turns.clock
        clock.v = max(clock.v, flow.tag)
        flow.charge(request)
        flow.running += 1
        self.running += 1
        self.served_cost += request.cost
        self.cost_max -= self.cost_max >> 10  # fades, so that one giant does not set the scale for ever
        self.remove(request)
        if flow.stamp:
            self.turns.renew(flow)

    def stop(self, request: Request, delta: int) -> None:
        """A started request ended, having cost `delta` more than it was charged."""
        flow = request.flow
        flow.correct(request, delta)
        flow.running -= 1
        self.running -= 1
        self.served_cost += delta
        if flow.stamp:
            self.turns.renew(flow)
        else:
            self.forget(flow)

    def recharge(self, request: Request, delta: int) -> None:
        """A running request costs `delta` more than it was charged."""
        request.flow.correct(request, delta)
        self.served_cost += delta
        if request.flow.stamp:
            self.turns.renew(request.flow)

    def forget(self, flow: Flow) -> None:
        """Drops a flow that holds nothing worth keeping: on return it would be lifted to the clock anyway."""
        if not flow.waiting and not flow.running and flow.tag <= self.turns.floor():
            self.flows.pop(flow.tenant.spec.name, None)

    def reweigh(self, flow: Flow, weight: float) -> None:
        """Takes a new weight; the debt in cost units stays, so the distance of the tag from the clock is rescaled."""
        new = max(1, round(weight * WEIGHT_STEPS))
        clock = self.turns.clock.v
        if flow.waiting:
            self.waiting_weight += new - flow.weight
        flow.tag = clock + (flow.tag - clock) * flow.weight // new
        flow.edge = clock + (flow.edge - clock) * flow.weight // new
        flow.weight = new
        if flow.stamp:
            self.turns.renew(flow)
