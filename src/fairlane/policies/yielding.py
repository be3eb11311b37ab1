"""Yielding: a running request of the least urgent class gives its place to a more urgent one, and waits again in its old place.

After a dispatch the first waiting head that may start, in the order of the classes, found no place. If it is more urgent than the
last class, the newest running request of that class gives way whose client has nothing of the answer, that is not a tenth done, and
whose place lets the head start. Nobody gives way for nothing: not while the last class is behind its guarantee or would be without the
request, for then its turn would come first again; nor who has waited for half of its time or gave way `TIMES_MAX` times; nor where
the backlog of the class is full. A head is given one place, so one request that needs much room cannot empty an engine.

What the engine did for it is lost. Such tokens are at most the part of all served tokens that the operator allows, and `BURST_TOKENS`
besides: an allowance that begins full and grows with what is served, never beyond that, so that quiet hours save up nothing. What was
made is not known but at most a number that the caller tells; with that and the whole prompt the account errs on the side of too much.

Cost where a head waits: O(classes), and a look at `LOOKED_AT` running requests at most.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from fairlane.core.pool import PoolScheduler
from fairlane.core.request import Request
from fairlane.core.values import WAITING

BURST_TOKENS = 16_384  # one long prompt
DONE_PART = 0.1  # of its predicted output, from which on a request is let run
WAITED_PART = 0.5  # of the longest wait, after which a request is not made to wait again
TIMES_MAX = 2  # that one request gives way
LOOKED_AT = 16  # of the running requests, the newest: older ones are mostly too far

Made = Callable[[Request, float], int | None]
"""Output tokens that a running request has at most at that time; None where it cannot be stopped without its client noticing."""


class Allowance:
    """How many tokens may be wasted now."""

    def __init__(self, part: float) -> None:
        self.part = part
        self.tokens = float(BURST_TOKENS)

    def served(self, tokens: int) -> None:
        """So many tokens were used for answers, whole or not."""
        self.tokens = min(BURST_TOKENS, self.tokens + self.part * tokens)

    def wasted(self, tokens: int) -> None:
        """So many were lost; the caller asks first whether they are allowed."""
        self.tokens -= tokens


class Yield(NamedTuple):
    """The request gives its place away now; at most so many tokens were made for it in vain, its prompt's included."""

    request: Request
    tokens: int


class Yielding:
    """Who gives way in one pool. It is told of what starts and of what is over, and asked after each dispatch."""

    def __init__(self, pool: PoolScheduler, part: float) -> None:
        self.allowance = Allowance(part)
        self._pool = pool
        self._last = len(pool.queues) - 1
        self._running: dict[int, Request] = {}  # of the last class, by start
        self._times: dict[int, int] = {}  # that a request that is not over gave way
        self._given: Request | None = None  # whom a place was given last

    def started(self, request: Request) -> None:
        """The request runs now."""
        if request.rank == self._last:
            self._running[request.id] = request

    def waits(self, request: Request) -> None:
        """The request that had started waits again."""
        self._running.pop(request.id, None)

    def over(self, request: Request, tokens: int = 0) -> None:
        """The request is over, having used so many tokens that are not told of yet."""
        self._running.pop(request.id, None)
        self._times.pop(request.id, None)
        self.allowance.served(tokens)

    def choose(self, made: Made, now: float) -> Yield | None:
        """Who gives way, which is booked: the caller stops it, puts it back and dispatches again before anything else happens."""
        pool, last = self._pool, self._pool.queues[self._last]
        if not self._running or last.queued >= last.spec.max_queued:
            return None
        head = self._head()
        if head is None or head is self._given or pool.order.is_owed(self._last):
            return None
        for request, tokens in self._able(made, now):
            if not pool.order.is_owed(self._last, request) and self._makes_room(request, tokens, head):
                self._given = head
                self._running.pop(request.id)
                self._times[request.id] = self._times.get(request.id, 0) + 1
                self.allowance.wasted(tokens)
                return Yield(request, tokens)
        return None

    def _head(self) -> Request | None:
        """The head that the order would start next if there were room, where that is a more urgent one than all that could yield."""
        order = self._pool.order
        heads = [head for head in self._pool.pending if head.state is WAITING]
        head = next((head for head in order.order(heads) if not order.keeps(head.rank)), None)
        return head if head is not None and head.rank < self._last else None

    def _able(self, made: Made, now: float) -> Iterator[Yield]:
        """Those that may give way, the newest first, with what that would waste."""
        spec, cost = self._pool.queues[self._last].spec, self._pool.queues[self._last].cost
        for request in islice(reversed(self._running.values()), LOOKED_AT):
            waited, longest = now - request.arrived_at, request.deadline - request.arrived_at
            if waited > WAITED_PART * longest or (spec.promote_after_s is not None and waited >= spec.promote_after_s):
                continue
            if self._times.get(request.id, 0) >= TIMES_MAX:
                continue
            if spec.max_queued_cost is not None and cost + request.cost > spec.max_queued_cost:
                continue
            produced = made(request, now)
            if produced is None or produced >= DONE_PART * request.output_tokens:
                continue
            if (tokens := request.prompt_tokens + produced) <= self.allowance.tokens:
                yield Yield(request, tokens)

    def _makes_room(self, request: Request, tokens: int, head: Request) -> bool:
        """Whether the head could start on the request's engine if that had ended; nothing is changed. A held engine is left alone."""
        places, engine = self._pool.places, request.engine
        if places.held is engine:
            return False
        limit = engine.limit
        limit.release(request)
        fits = places.choose(head) is engine
        limit.take(request)
        if request.first_token_at is not None:
            limit.progress(request, tokens - request.prompt_tokens)
        return fits
