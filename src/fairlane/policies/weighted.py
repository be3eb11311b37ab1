"""Weighted shares between classes: start-time fair queueing with the classes' minimum shares as weights.

Every class gets its part of the service, whatever the others want, and what a class does not use goes to the others in
proportion. Urgency counts only through the weights. For two continuously backlogged classes the served cost over weight
differs by at most (D + 1) times the sum of their largest costs over weight. Tenants as in `fair`.
Cost of a decision: O(classes). Where no class has a share, all weigh the same.
"""

from collections.abc import Sequence

from fairlane.core.protocols import Policy
from fairlane.core.request import Request
from fairlane.core.values import BASIS_POINTS, PriorityClass
from fairlane.policies.fair import FairTenants

TAG_UNIT = BASIS_POINTS << 16


def policy(classes: Sequence[PriorityClass]) -> Policy:
    """`weighted`."""
    return Policy(Weighted(classes), FairTenants())


class Weighted:
    """Heads by the tag of their class: its served cost over its weight."""

    def __init__(self, classes: Sequence[PriorityClass]) -> None:
        self._clock = 0
        self._tag = [0] * len(classes)
        self._edge = [0] * len(classes)
        self._weight: list[int] = []
        self.reconfigure(classes)

    def enter(self, rank: int) -> None:
        """Lifts the class to the clock."""
        self._tag[rank] = self._edge[rank] = max(self._tag[rank], self._clock)

    def order(self, heads: Sequence[Request]) -> Sequence[Request]:
        """The least tag first; of equal ones the more urgent class."""
        return sorted(heads, key=lambda r: (self._tag[r.rank], r.rank))

    def is_owed(self, _rank: int, _without: Request | None = None) -> bool:
        """Never: shares are kept by the order itself."""
        return False

    def keeps(self, _rank: int) -> bool:
        """Never."""
        return False

    def charge(self, request: Request) -> None:
        """Moves the clock to the class's tag, and the tag by the cost."""
        request.owed, rank = False, request.rank
        self._clock = max(self._clock, self._tag[rank])
        self._tag[rank] += request.cost * TAG_UNIT // self._weight[rank]

    def correct(self, request: Request, delta: int) -> None:
        """Moves the tag by the difference; not below its last lift."""
        rank = request.rank
        self._tag[rank] = max(self._tag[rank] + delta * TAG_UNIT // self._weight[rank], self._edge[rank])

    def leave(self, rank: int) -> None:
        """What runs changes nothing."""

    def resize(self, slots: int) -> None:
        """Nothing here depends on it."""

    def reconfigure(self, classes: Sequence[PriorityClass]) -> None:
        """Takes new weights; debts in cost units stay."""
        new = [c.min_share for c in classes] if any(c.min_share for c in classes) else [1] * len(classes)
        new = [max(1, weight) for weight in new]
        for tags in (self._tag, self._edge):
            for rank, old in enumerate(self._weight):
                tags[rank] = self._clock + (tags[rank] - self._clock) * old // new[rank]
        self._weight = new
