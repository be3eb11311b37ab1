"""A common mistake, for comparison only: aging whose key is computed once, when the request arrives.

`priority − α·wait` with a wait of 0 is the bare priority: nothing ages, and the order is strict priority, by arrival
inside a class. Cost of a decision: O(classes + log flows).
"""

from collections.abc import Sequence

from fairlane.core.protocols import Policy
from fairlane.core.request import Request
from fairlane.core.values import PriorityClass
from fairlane.policies.strict import ByArrival, Strict

SECONDS_PER_RANK = 10.0


def policy(_classes: Sequence[PriorityClass]) -> Policy:
    """`submit_aging`."""
    return Policy(SubmitAging(), ByArrival())


class SubmitAging(Strict):
    """Heads by `rank·A − wait at submission`."""

    def order(self, heads: Sequence[Request]) -> Sequence[Request]:
        """The least key first; the wait at submission is 0."""
        return sorted(heads, key=lambda r: (r.rank * SECONDS_PER_RANK - 0.0, r.arrived_at, r.id))
