"""Waiting requests by a key, in a heap that forgets what no longer waits when it surfaces, or when too much of it is there."""

from heapq import heapify, heappop, heappush

from fairlane.core.values import WAITING, Request

SLACK = 16  # stale entries tolerated before the heap is rebuilt


class Waiting:
    """The waiting requests of one flow by their order, or of one pool by their deadline."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []

    def add(self, key: float, request: Request, waiting: int) -> None:
        """Counts a request that begins to wait, one of `waiting`."""
        heappush(self._heap, (key, request.id, request))
        if len(self._heap) > 2 * waiting + SLACK:
            self._heap = [entry for entry in self._heap if entry[2].state is WAITING]
            heapify(self._heap)

    def first(self) -> Request:
        """The request with the least key; only while one waits."""
        heap = self._heap
        while heap[0][2].state is not WAITING:
            heappop(heap)
        return heap[0][2]
