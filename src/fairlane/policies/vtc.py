"""Virtual token counters: the tenant that was served least goes first, whatever its class. For comparison.

Each tenant's counter is its served cost over its weight, charged by prediction and corrected; a tenant that becomes
backlogged is lifted to the least of the active ones. Classes mean nothing, nor do deadlines.
For two continuously backlogged tenants the difference is at most twice the largest cost that a batch can hold.
Cost of a decision: O(classes + log tenants). Source: Sheng et al., Fairness in Serving Large Language Models, OSDI 2024.
"""

from collections.abc import Sequence

from fairlane.core.protocols import Policy
from fairlane.core.request import Request
from fairlane.core.values import PriorityClass
from fairlane.policies.fair import FairTenants
from fairlane.policies.strict import Strict


def policy(_classes: Sequence[PriorityClass]) -> Policy:
    """`vtc`."""
    return Policy(LeastServed(), FairTenants(short_first=False, shared_clock=True))


class LeastServed(Strict):
    """Heads by the tag of their flow, on a clock that all classes share."""

    def order(self, heads: Sequence[Request]) -> Sequence[Request]:
        """The least tag first."""
        return sorted(heads, key=lambda r: (r.flow.tag, r.id))
