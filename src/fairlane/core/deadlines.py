"""When waiting requests have waited long enough: a heap that forgets what no longer waits."""

from heapq import heapify, heappop, heappush
from itertools import count

from fairlane.core.values import Request, State

SLACK = 1024  # stale entries tolerated before the heap is rebuilt


class Deadlines:
    """The waiting requests of one pool, by deadline."""

    __slots__ = ("_heap", "_ties")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._ties = count()

    def add(self, request: Request, waiting: int) -> None:
        """Counts a request that begins to wait, one of `waiting`."""
        heappush(self._heap, (request.deadline, next(self._ties), request))
        if len(self._heap) > 2 * waiting + SLACK:
            self._heap = [entry for entry in self._heap if entry[2].state is State.WAITING]
            heapify(self._heap)

    def next(self) -> float | None:
        """The earliest deadline of a request that waits, or None."""
        heap = self._heap
        while heap and heap[0][2].state is not State.WAITING:
            heappop(heap)
        return heap[0][0] if heap else None

    def pop(self, now: float) -> Request | None:
        """Takes out a request whose deadline has come, or returns None."""
        deadline = self.next()
        return heappop(self._heap)[2] if deadline is not None and deadline <= now else None
