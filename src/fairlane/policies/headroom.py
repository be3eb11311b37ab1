"""Room for urgent requests that are still to come: a cap on how many of the less urgent run, as low as need be.

Nothing that runs is stopped, so even the most urgent request waits until a place comes free, and where the answers that hold the
places are long that can take longer than its objective allows. So how many of them may run is found while serving, for the most
urgent class that has an objective: a request of it that starts with more than `NEAR` of its time gone lowers the cap on what is less
urgent by `STEP`, with more than `FAR` by twice that, and any other raises it by `STEP`·`TARGET`. About a part `TARGET` of them
starts near its end then, however fast the engines are and however long the answers. The cap begins at the most that ran
together; it is given up where it has risen to that again, and when `GIVEN_BACK` times as many of the others have started with
none of the class in between.
It is a part of the places that there are: where an engine joins, or a limit that finds itself grows, it grows in proportion, else what
was found with few places would keep the new ones empty, and a controller would take that for want of demand.

Only what starts while as many run as ever of late lowers the cap: else it was not for want of a place that it had to wait. What a
class is guaranteed is not touched: the cap is for heads that are not owed, and one request may run in any case. While it is in
force a place can be free though something waits. Cost: O(classes). Source: a quantile tracker, as for the calibration of
lengths (Gibbs and Candès, 2021).
"""

from collections.abc import Sequence
from math import inf

from fairlane.core.protocols import ClassOrder
from fairlane.core.request import Request
from fairlane.core.values import PriorityClass

NEAR, FAR = 0.7, 0.85  # of the time from arrival to the latest first token
STEP = 0.15  # requests
TARGET = 0.1
GIVEN_BACK = 3
FADE = 1 / 1024  # of the most that ran, at each start


class Headroom:
    """An order of classes that keeps room for the most urgent one."""

    def __init__(self, order: ClassOrder, classes: Sequence[PriorityClass]) -> None:
        self.inner = order
        self.cap = inf  # on running requests that are less urgent
        self._rank = _protected(classes)
        self._running = [0] * len(classes)
        self._most = 0.0  # less urgent requests that ran together
        self._peak = 0.0  # requests of all classes that ran together of late
        self._others = 0  # of these started since one of the class did
        self._slots = 0  # that the cap was found with

    @property
    def below(self) -> int:
        """How many less urgent requests run."""
        return sum(self._running[self._rank + 1 :])

    def enter(self, rank: int) -> None:
        """As the order does."""
        self.inner.enter(rank)

    def order(self, heads: Sequence[Request]) -> Sequence[Request]:
        """As the order says."""
        return self.inner.order(heads)

    def is_owed(self, rank: int, without: Request | None = None) -> bool:
        """As the order says."""
        return self.inner.is_owed(rank, without)

    def keeps(self, rank: int) -> bool:
        """Whether the class may start no more than it is guaranteed now."""
        return rank > self._rank and self.cap < inf and 0 < self.below > self.cap - 1 and not self.inner.is_owed(rank)

    def charge(self, request: Request) -> None:
        """Counts the start, and learns from how late it is."""
        self.inner.charge(request)
        rank, due = request.rank, request.due
        self._running[rank] += 1
        running = sum(self._running)
        self._peak = peak = max(float(running), self._peak * (1.0 - FADE))
        if rank > self._rank:
            self._most = max(self._most, float(self.below))
            self._others += 1
            if self._others > GIVEN_BACK * self.cap:
                self._move(inf)
        elif rank == self._rank and due is not None:
            self._others = 0
            used = (request.started_at - request.arrived_at) / (due - request.arrived_at)
            if used <= NEAR:
                self._move(STEP * TARGET)
            elif running > peak - 0.5:
                self._move(-STEP if used <= FAR else -2 * STEP)

    def correct(self, request: Request, delta: int) -> None:
        """As the order does."""
        self.inner.correct(request, delta)

    def leave(self, rank: int) -> None:
        """One of the class's requests runs no more."""
        self.inner.leave(rank)
        self._running[rank] -= 1

    def resize(self, slots: int) -> None:
        """What was found with other slots holds in proportion."""
        self.inner.resize(slots)
        if slots and self._slots:
            change = slots / self._slots
            self.cap *= change
            self._most *= change
        self._slots = slots or self._slots

    def reconfigure(self, classes: Sequence[PriorityClass]) -> None:
        """As the order does. Another class to keep room for begins without a cap."""
        self.inner.reconfigure(classes)
        if _protected(classes) != self._rank:
            self._rank = _protected(classes)
            self._most, self.cap = float(self.below), inf

    def _move(self, by: float) -> None:
        if self.cap == inf and by > 0:
            return
        cap = min(self.cap, self._most) + by
        if cap >= self._most:
            cap = inf
            self._most = float(self.below)
        self.cap = max(cap, 1.0)


def _protected(classes: Sequence[PriorityClass]) -> int:
    """The rank of the most urgent class that has an objective, or one below all."""
    return next((c.rank for c in classes if c.ttft_slo_s is not None), len(classes))
