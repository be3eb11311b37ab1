# ruff: noqa: FURB136, PLR1730 - max() costs more than all the rest of these methods
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
from fairlane.core.values import RUNNING, WAITING, PriorityClass

if TYPE_CHECKING:
    from fairlane.core.protocols import TenantOrder
    from fairlane.core.request import Request
    from fairlane.core.tenants import TenantState

WEIGHT_STEPS = 1000  # weights are kept to a thousandth
TAG_UNIT = WEIGHT_STEPS << 16
SLACK = 16  # stale entries tolerated before a heap is rebuilt


class Waiting:
    """The waiting requests of a flow by their order, or of a pool by their deadline, in a heap that forgets what waits no longer."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []

    def add(self, key: float, request: Request, waiting: int) -> None:
        """Counts a request that begins to wait, one of `waiting`."""
        heappush(self._heap, (key, request.id, request))
        if len(self._heap) > 2 * waiting + SLACK:
            self._heap = [entry for entry in self._heap if entry[2].state is WAITING]
            heapify(self._heap)

    def first_able(self) -> Request | None:
        """The first whose tenant may run another, if one waits; those before it are forgotten."""
        heap = self._heap
        while heap and (heap[0][2].state is not WAITING or heap[0][2].flow.tenant.full):
            heappop(heap)
        return heap[0][2] if heap else None

    def first(self) -> Request:
        """The request with the least key; only while one waits."""
        heap = self._heap
        while heap[0][2].state is not WAITING:
            heappop(heap)
        return heap[0][2]


class Flow:
    """One tenant's waiting requests in one class of one pool."""

    __slots__ = ("cost", "edge", "in_order", "queue", "running", "spec", "stamp", "tag", "tenant", "waiting", "weight")

    def __init__(self, tenant: TenantState, queue: ClassQueue) -> None:
        self.tenant = tenant
        self.queue = queue
        self.spec = tenant.spec  # whose weight it has
        self.weight = max(1, round(self.spec.weight * WEIGHT_STEPS))
        self.tag = self.edge = queue.turns.floor()
        self.stamp = 0  # of the one valid entry in the class's heap; 0: none
        self.waiting: dict[int, Request] = {}  # by arrival
        self.in_order = Waiting()
        self.cost = 0  # of what waits
        self.running = 0

    def head(self) -> Request:
        """The request with the least key; only for a flow with something waiting."""
        return self.in_order.first()

    def lift(self, floor: int) -> None:
        """It becomes backlogged: idle time must have earned it nothing."""
        if self.edge < floor:
            self.edge = floor
        if self.tag < floor:
            self.tag = floor

    def correct(self, request: Request, delta: int) -> None:
        """Books a difference to what the request was charged, at the weight it was charged with."""
        difference = request.flow_charge * delta // request.cost
        request.flow_charge += difference
        tag = self.tag + difference
        self.tag = tag if tag > self.edge else self.edge


class Clock:
    """The virtual time v of one class, or of several that share it."""

    v = 0


class Turns:
    """The flows of one class that have something to start, in the order of their turns."""

    __slots__ = ("_heap", "_stamps", "_turn", "clock", "flows", "head")

    def __init__(self, turn: Callable[[Flow], float], clock: Clock) -> None:
        self.clock = clock
        self.flows = 0  # that compete
        self.head: Request | None = None  # of the first of them, as long as nothing can have changed it
        self._turn = turn
        self._stamps = 0
        self._heap: list[tuple[float, int, Flow]] = []

    def floor(self) -> int:
        """The clock, or the tag of the flow whose turn it is where refunds have taken that below the clock."""
        return min(self.clock.v, self.first().tag) if self.flows else self.clock.v

    def enter(self, flow: Flow) -> None:
        """The flow has something to start: it competes, lifted to the floor."""
        flow.lift(self.floor())
        self.flows += 1
        self.renew(flow)

    def leave(self, flow: Flow) -> None:
        """The flow has nothing that may start now."""
        if flow.stamp:
            flow.stamp = 0
            self.flows -= 1
            self.head = None

    def renew(self, flow: Flow) -> None:
        """The flow competes with its present turn; an older entry of it is dropped when it surfaces."""
        self.head = None
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
        self.short = Waiting()  # by arrival, of all flows: what may use the fast lane
        self.queued = 0
        self.cost = 0  # of what waits
        self.running = 0
        self.served = 0  # requests that started and were not for nothing
        self.served_cost = 0
        self.cost_max = 0  # largest cost seen lately
        self.waiting_weight = 0  # of flows with something waiting
        self.entered = False  # was backlogged when last looked at
        self.rate = ServiceRate(now)
        self.shadow = Shadow(now)

    @property
    def full(self) -> bool:
        """Whether as many of its requests run as may."""
        most = self.spec.max_running
        return most is not None and self.running >= most

    @property
    def backlogged(self) -> bool:
        """Whether something waits that its own and its tenant's `max_running` let start."""
        return self.turns.flows > 0 and not self.full

    def flow(self, tenant: TenantState) -> Flow:
        """The tenant's flow, made if it has none."""
        flow = self.flows.get(tenant.spec.name)
        if flow is None:
            flow = self.flows[tenant.spec.name] = Flow(tenant, self)
        elif flow.spec is not tenant.spec:
            self.reweigh(flow)
        return flow

    @property
    def waiting_flows(self) -> Iterator[Flow]:
        """The flows that have something waiting."""
        return (f for f in self.flows.values() if f.waiting)

    def head(self) -> Request | None:
        """The head of the flow whose turn it is, or None if nothing may start."""
        turns = self.turns
        if not turns.flows or self.full:
            return None
        if turns.head is None:
            turns.head = turns.first().head()
        return turns.head

    def add(self, request: Request, flow: Flow) -> None:
        """Puts a request into the backlog of its flow."""
        request.flow = flow
        request.state = WAITING
        if not flow.waiting:
            flow.tenant.flows[flow] = None
            self.waiting_weight += flow.weight
        flow.waiting[request.id] = request
        flow.in_order.add(request.key, request, len(flow.waiting))
        flow.cost += request.cost
        self.queued += 1
        if request.short:
            self.short.add(request.arrived_at, request, self.queued)
        self.cost += request.cost
        if self.cost_max < request.cost:
            self.cost_max = request.cost
        self.turns.head = None
        if not flow.stamp:
            if not flow.tenant.full:
                self.turns.enter(flow)
        elif self.order.by_head and flow.head() is request:
            self.turns.renew(flow)

    def remove(self, request: Request) -> None:
        """Takes a request out that waits no more, whether it starts or ends."""
        flow = request.flow
        del flow.waiting[request.id]
        flow.cost -= request.cost
        self.queued -= 1
        self.cost -= request.cost
        self.turns.head = None
        if not flow.waiting:
            flow.in_order = Waiting()
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
        if clock.v < flow.tag and self.turns.head is request:  # the fast lane passes flows whose turn it is
            clock.v = flow.tag
        self._run(request, flow)
        self.remove(request)
        if flow.stamp:
            self.turns.renew(flow)

    def start_at_once(self, request: Request, flow: Flow) -> None:
        """The same as `add` and then `start`, for a request that competes with none."""
        request.flow = flow
        if self.cost_max < request.cost:
            self.cost_max = request.cost
        turns = self.turns
        flow.lift(turns.clock.v)
        turns.clock.v = flow.tag
        self._run(request, flow)

    def _run(self, request: Request, flow: Flow) -> None:
        cost = request.cost
        request.state = RUNNING
        request.flow_charge = charge = cost * TAG_UNIT // flow.weight
        flow.tag += charge
        flow.running += 1
        self.running += 1
        self.served += 1
        self.served_cost += cost
        self.cost_max -= self.cost_max >> 10  # fades, so that one giant does not set the scale for ever

    def stop(self, request: Request, delta: int) -> None:
        """A started request ended, having cost `delta` more than it was charged."""
        flow = request.flow
        flow.running -= 1
        self.running -= 1
        self.served -= delta == -request.cost
        self.recharge(request, delta)
        self.forget(flow)

    def recharge(self, request: Request, delta: int) -> None:
        """A running request costs `delta` more than it was charged."""
        flow = request.flow
        flow.correct(request, delta)
        self.served_cost += delta
        if flow.stamp:
            self.turns.renew(flow)

    def forget(self, flow: Flow) -> None:
        """Drops a flow that holds nothing worth keeping: on return it would be lifted to the clock anyway."""
        if not flow.running and not flow.waiting and flow.tag <= self.turns.floor():
            self.flows.pop(flow.tenant.spec.name, None)

    def reweigh(self, flow: Flow) -> None:
        """Takes its tenant's new weight; the debt in cost units stays, so the distance of the tag from the clock is rescaled."""
        flow.spec = flow.tenant.spec
        new = max(1, round(flow.spec.weight * WEIGHT_STEPS))
        clock = self.turns.clock.v
        if flow.waiting:
            self.waiting_weight += new - flow.weight
        flow.tag = clock + (flow.tag - clock) * flow.weight // new
        flow.edge = clock + (flow.edge - clock) * flow.weight // new
        flow.weight = new
        if flow.stamp:
            self.turns.renew(flow)
