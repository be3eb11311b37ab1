"""Linear aging: each second of waiting counts like a step of the class, A seconds a step.

`rank·A − wait` orders like the static key `rank·A + arrival`, so nothing has to be re-keyed. A request is overtaken by one
of a higher class only if that one arrives within A times the difference in rank. It prevents starvation, and no more: in a
lasting overload all classes wait equally long, and the class that gives up last gets the service of the others.
Cost of a decision: O(classes + log flows).
"""

from collections.abc import Sequence

from fairlane.core.protocols import Policy
from fairlane.core.request import Request
from fairlane.core.values import PriorityClass
from fairlane.policies.strict import ByArrival, Strict

SECONDS_PER_RANK = 10.0  # A


def policy(_classes: Sequence[PriorityClass]) -> Policy:
    """`aging`."""
    return Policy(Aging(), ByArrival())


class Aging(Strict):
    """Heads by `rank·A + arrival`."""

    def order(self, heads: Sequence[Request]) -> Sequence[Request]:
        """The least key first."""
        return sorted(heads, key=lambda r: (r.rank * SECONDS_PER_RANK + r.arrived_at, r.id))
