# ruff: noqa: FURB136 - min() costs more than all the rest
"""Tenants by start-time fair queueing, requests of a tenant by a static key.

The flow with the least tag goes next. For two continuously backlogged flows the served cost over weight differs by at most
(D + 1) times the sum of their largest costs over weight, at D requests in flight; measured at most 4 largest costs.
The key is `arrived_at + min(β·cost, W)`: short requests first, each overtaken only by what arrived within W after it.
Cost of a decision: O(log flows + log requests of the flow). Source: Goyal, Vin, Cheng 1997; Jin, Chase, Kaur 2004.
"""

from fairlane.core.flows import Flow
from fairlane.core.request import Request
from fairlane.core.values import PriorityClass

SECONDS_PER_COST = 0.001  # β


class FairTenants:
    """Equal or weighted shares for tenants, in served cost. `short_first` False: by arrival inside a tenant."""

    by_head = False

    def __init__(self, *, short_first: bool = True, shared_clock: bool = False) -> None:
        self.shared_clock = shared_clock
        self._seconds_per_cost = SECONDS_PER_COST if short_first else 0.0

    def key(self, request: Request, spec: PriorityClass) -> float:
        """Arrival, later for costly requests but never by more than the class's `short_first_s`."""
        later, most = self._seconds_per_cost * request.cost, spec.short_first_s
        return request.arrived_at + (later if later < most else most)

    def turn(self, flow: Flow) -> float:
        """The flow's tag."""
        return flow.tag
