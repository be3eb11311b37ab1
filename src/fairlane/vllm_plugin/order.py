"""The order in which waiting requests join an engine's batch: the scheduler's policy and books, without its limits.

What the engine runs, and how long something waits, is the engine's affair here. So of the core only the order of the classes and the
flows of each class are used, with their charges and corrections. Nothing here knows vLLM.
"""

from collections.abc import Sequence

from fairlane.core.flows import ClassQueue, Clock
from fairlane.core.protocols import Policy
from fairlane.core.request import Request
from fairlane.core.tenants import TenantState
from fairlane.core.values import ENDED, PriorityClass

NO_CLOCK = 0.0  # of what measures time in the core: none of it is used here
FLOWS_MAX = 10_000  # tenants of a class whose debts are remembered while they have nothing here: 10 MB of memory


class BatchOrder:
    """Waiting and charged requests of one engine. `charged` is the cost of all that started, corrected by what has ended."""

    def __init__(self, classes: Sequence[PriorityClass], policy: Policy) -> None:
        clocks = [Clock()] * len(classes) if policy.tenants.shared_clock else [Clock() for _ in classes]
        self.queues = [ClassQueue(c, policy.tenants, clock, NO_CLOCK) for c, clock in zip(classes, clocks, strict=True)]
        self.classes = policy.classes
        self.queued = 0
        self._flows_max = [FLOWS_MAX for _ in classes]
        self._first: Request | None = None  # as long as nothing has changed

    @property
    def charged(self) -> int:
        """What all classes were charged so far, in cost units."""
        return sum(queue.served_cost for queue in self.queues)

    def add(self, request: Request) -> None:
        """Puts a request into the line of its tenant. It has its cost, and its key."""
        queue = self.queues[request.rank]
        flow = queue.flows.get(request.tenant.name)
        if flow is None and len(queue.flows) >= self._flows_max[request.rank]:
            self._forget_idle(queue)
        tenant = flow.tenant if flow is not None else TenantState(request.tenant, NO_CLOCK)
        queue.add(request, queue.flow(tenant))
        self.queued += 1
        self._first = None
        if not queue.entered:
            self.classes.enter(request.rank)
            queue.entered = True

    def first(self) -> Request:
        """The request whose turn it is; only while one waits."""
        if self._first is None:
            heads = [head for queue in self.queues if (head := queue.head()) is not None]
            self._first = self.classes.order(heads)[0]
        return self._first

    def start(self) -> Request:
        """Takes the first out, and charges its class and its tenant."""
        request = self.first()
        self.classes.charge(request)
        self.queues[request.rank].start(request)
        self._left(request)
        return request

    def put_back(self, request: Request) -> None:
        """A request that has just started is not in the batch: it waits in its old place, as if it had not been looked at."""
        cost = request.cost
        self.settle(request, 0)
        request.cost = cost
        self.queues[request.rank].entered = True  # its class has had it waiting all the time
        self.add(request)

    def remove(self, request: Request) -> None:
        """Takes a waiting request out, which was charged nothing."""
        request.state = ENDED
        self.queues[request.rank].remove(request)
        self._left(request)

    def progress(self, request: Request, extra_cost: int) -> None:
        """A started request costs so much more than it was charged."""
        self.classes.correct(request, extra_cost)
        self.queues[request.rank].recharge(request, extra_cost)
        request.cost += extra_cost
        self._first = None

    def settle(self, request: Request, cost: int) -> None:
        """A started request is over: every book is corrected to its true cost."""
        delta = cost - request.cost
        self.classes.correct(request, delta)
        self.classes.leave(request.rank)
        self.queues[request.rank].stop(request, delta)
        request.cost = cost
        request.state = ENDED
        self._first = None

    def _forget_idle(self, queue: ClassQueue) -> None:
        """Names are the callers' to invent, so those that have nothing here must not pile up; each loses a debt of a request at most."""
        queue.flows = {name: flow for name, flow in queue.flows.items() if flow.waiting or flow.running}
        self._flows_max[queue.spec.rank] = max(FLOWS_MAX, 2 * len(queue.flows))

    def _left(self, request: Request) -> None:
        queue = self.queues[request.rank]
        queue.entered = queue.queued > 0
        self.queued -= 1
        self._first = None
