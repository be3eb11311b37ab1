"""First come, first served over all classes: what a semaphore in front of an engine does.

No class, tenant or request is told from another. Cost of a decision: O(classes + log flows).
"""

from collections.abc import Sequence

from fairlane.core.protocols import Policy
from fairlane.core.request import Request
from fairlane.core.values import PriorityClass
from fairlane.policies.strict import ByArrival, Strict


def policy(_classes: Sequence[PriorityClass]) -> Policy:
    """`fifo`."""
    return Policy(Fifo(), ByArrival())


class Fifo(Strict):
    """Heads by arrival."""

    def order(self, heads: Sequence[Request]) -> Sequence[Request]:
        """The oldest first; at the same moment the one of the more urgent class."""
        return sorted(heads, key=lambda r: (r.arrived_at, r.id))
