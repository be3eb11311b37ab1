"""Deficit round robin between tenants, whatever their class. For comparison.

In each round a tenant earns a quantum and sends as long as its deficit covers the head's cost. That is the order of the round
in which a head is covered: the cost served so far and its own, divided by the quantum, rounded up. Inside a round tenants
take turns. Unfairness is about a quantum and the largest cost, delay up to a whole round.
Cost of a decision: O(classes + log tenants). Source: Shreedhar and Varghese, 1995.
"""

from collections.abc import Sequence

from fairlane.core.flows import TAG_UNIT, Flow
from fairlane.core.protocols import Policy
from fairlane.core.request import Request
from fairlane.core.values import PriorityClass
from fairlane.policies.strict import Strict

QUANTUM = 2000  # cost units for a weight of 1: about one request


def policy(_classes: Sequence[PriorityClass]) -> Policy:
    """`drr`."""
    return Policy(ByRound(), DeficitTenants())


def round_of(flow: Flow) -> float:
    """The round in which the flow's deficit covers its head."""
    after = flow.tag + flow.head().cost * TAG_UNIT // flow.weight
    return -(-after // (QUANTUM * TAG_UNIT // 1000))


class ByRound(Strict):
    """Heads by the round of their flow."""

    def order(self, heads: Sequence[Request]) -> Sequence[Request]:
        """The earliest round first, inside it the head that came first."""
        return sorted(heads, key=lambda r: (round_of(r.flow), r.id))


class DeficitTenants:
    """Flows by round, requests by arrival."""

    by_head = True
    shared_clock = True

    def key(self, request: Request, _spec: PriorityClass) -> float:
        """The arrival."""
        return request.arrived_at

    def turn(self, flow: Flow) -> float:
        """The round."""
        return round_of(flow)
