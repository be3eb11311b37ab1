"""What is to happen later in a run, in order of time; at one moment in the order in which it was put down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count


class Agenda:
    """Calls to be made at given moments."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._ties = count()

    def put(self, at: float, call: Callable[[], None]) -> None:
        """Puts down a call."""
        heappush(self._heap, (at, next(self._ties), call))

    def next(self) -> float:
        """When the next call is due; infinity if there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def due(self, now: float) -> Iterator[Callable[[], None]]:
        """Takes out what is due, one after the other, so that a call may put down more for the same moment."""
        while self._heap and self._heap[0][0] <= now:
            yield heappop(self._heap)[2]
