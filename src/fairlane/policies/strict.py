"""Strict priority: the most urgent class first, by arrival inside it, whoever sent it.

Nothing is guaranteed to the lower classes or between tenants. Cost of a decision: O(classes + log flows).
"""

from collections.abc import Sequence

from fairlane.core.flows import Flow
from fairlane.core.protocols import Policy
from fairlane.core.request import Request
from fairlane.core.values import PriorityClass


def policy(_classes: Sequence[PriorityClass]) -> Policy:
    """`strict`."""
    return Policy(Strict(), ByArrival())


class Strict:
    """Heads by rank. It keeps no books: nobody is owed anything."""

    def enter(self, rank: int) -> None:
        """Idle time changes nothing."""

    def order(self, heads: Sequence[Request]) -> Sequence[Request]:
        """By rank, as they are given."""
        return heads

    def is_owed(self, _rank: int, _without: Request | None = None) -> bool:
        """Never."""
        return False

    def keeps(self, _rank: int) -> bool:
        """Never."""
        return False

    def charge(self, request: Request) -> None:
        """What was served changes nothing."""
        request.owed = False

    def correct(self, request: Request, delta: int) -> None:
        """What it cost changes nothing."""

    def leave(self, rank: int) -> None:
        """What runs changes nothing."""

    def resize(self, slots: int) -> None:
        """Nothing here depends on it."""

    def reconfigure(self, classes: Sequence[PriorityClass]) -> None:
        """Shares mean nothing."""


class ByArrival:
    """One line for all tenants of a class."""

    by_head = True
    shared_clock = False

    def key(self, request: Request, _spec: PriorityClass) -> float:
        """The arrival."""
        return request.arrived_at

    def turn(self, flow: Flow) -> float:
        """The arrival of its oldest request."""
        return flow.head().key
