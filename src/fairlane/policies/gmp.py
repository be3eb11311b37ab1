# ruff: noqa: FURB136, PLR1730 - min() and max() cost more than all the rest of these methods
"""Guaranteed minimum, priority for the rest.

A total V counts all dispatched cost. A class c with minimum share m_c has a tag T_c, the total up to which its guarantee
has been served; while T_c < V it is *owed*. Owed classes go first, by earliest virtual finish T_c + cost/m_c; what is
left goes by rank. A request of an owed class moves T_c by cost/m_c. One of the rest moves it to at most one request
ahead of V, so serving a class beyond its guarantee does not cost it the guarantee later.

Becoming backlogged lifts T_c to V: idleness earns no credit, and debt is kept. A correction moves V, and T_c by as much as the
request had moved it, but not below the lift: a refund does not become credit either. A class that was lifted after the
request had started is moved along with V: what was dispatched before it came is no claim and no debt of its.

Shortfall of a continuously backlogged class: proven at most (D + 2) times the largest cost at D requests in flight,
measured at most 2. Cost of a decision: O(classes). Source: start-time fair queueing (Goyal, Vin, Cheng 1997) at depth D
(Jin, Chase, Kaur 2004), with the assured-rate-plus-priority rule of hierarchical link sharing.

All numbers are integers: U_c = T_c·m_c is kept instead of T_c, with m_c in basis points.
"""

from collections.abc import Sequence

from fairlane.core.protocols import Policy
from fairlane.core.request import Request
from fairlane.core.values import BASIS_POINTS, PriorityClass
from fairlane.policies.fair import FairTenants
from fairlane.policies.headroom import Headroom


def policy(classes: Sequence[PriorityClass]) -> Policy:
    """`gmp`: guaranteed minimum between classes, fair between tenants, short requests first inside each."""
    return Policy(Headroom(GuaranteedMinimum(classes), classes), FairTenants())


class GuaranteedMinimum:
    """The order of classes. With every share 0 it is strict priority."""

    __slots__ = ("_edge", "_lifted", "_moment", "_share", "_tag", "total")

    def __init__(self, classes: Sequence[PriorityClass]) -> None:
        self.total = 0  # V, in cost units
        self._share = [c.min_share for c in classes]
        self._tag = [0] * len(classes)  # U
        self._edge = [0] * len(classes)  # U to which the class was lifted last
        self._moment = 0  # counts starts and lifts
        self._lifted = [0] * len(classes)  # the moment of the last lift

    def enter(self, rank: int) -> None:
        """Lifts the class's tag to V."""
        self._moment += 1
        self._lifted[rank] = self._moment
        self._edge[rank] = edge = self.total * self._share[rank]
        if self._tag[rank] < edge:
            self._tag[rank] = edge

    def is_owed(self, rank: int, without: Request | None = None) -> bool:
        """Whether the class's tag is behind V, or would be with both as they were if `without` were refunded in full."""
        tag, total, share = self._tag[rank], self.total, self._share[rank]
        if without is None:
            return tag < total * share
        edge, cost = self._edge[rank], without.cost
        paid = cost * BASIS_POINTS
        tag = max(tag - (paid if without.owed else min(paid, without.class_charge)), edge)
        shift = cost * share if self._lifted[rank] > without.moment else 0
        return tag - shift < (total - cost) * share

    def order(self, heads: Sequence[Request]) -> Sequence[Request]:
        """Owed classes by earliest virtual finish, then the others by rank."""
        tags, shares, total = self._tag, self._share, self.total
        owed: list[Request] = []
        rest: list[Request] = []
        for head in heads:
            (owed if tags[head.rank] < total * shares[head.rank] else rest).append(head)
        if len(owed) > 1:
            owed.sort(key=lambda r: (tags[r.rank] + r.cost * BASIS_POINTS) / shares[r.rank])
        return owed + rest

    def keeps(self, _rank: int) -> bool:
        """Never."""
        return False

    def charge(self, request: Request) -> None:
        """Moves V by the cost, and the class's tag as the module's text says."""
        rank, cost = request.rank, request.cost * BASIS_POINTS
        at_total = self.total * self._share[rank]
        before = self._tag[rank]
        request.owed = owed = before < at_total
        after = (before if owed else at_total) + cost
        if after < before:
            after = before
        self._tag[rank] = after
        request.class_charge = after - before
        self._moment += 1
        request.moment = self._moment
        self.total += request.cost

    def correct(self, request: Request, delta: int) -> None:
        """Moves V by the difference, and the tag as far as the request had moved it; not below the tag's last lift."""
        self.total += delta
        rank, moment, tags, edges = request.rank, request.moment, self._tag, self._edge
        moved = delta * BASIS_POINTS
        if not request.owed:  # the rest never paid in full: only what it paid is returned
            moved = 0 if moved > 0 else max(moved, -request.class_charge)
        if moved:
            request.class_charge += moved
            tag = tags[rank] + moved
            tags[rank] = tag if tag > edges[rank] else edges[rank]
        for other, lifted in enumerate(self._lifted):
            if lifted > moment:
                shift = delta * self._share[other]
                tags[other] += shift
                edges[other] += shift

    def leave(self, rank: int) -> None:
        """What runs changes nothing."""

    def resize(self, slots: int) -> None:
        """Nothing here depends on it."""

    def reconfigure(self, classes: Sequence[PriorityClass]) -> None:
        """Keeps U − V·m, the debt or claim in cost units, so T becomes V + (T − V)·m_old/m_new."""
        for c in classes:
            shift = self.total * (c.min_share - self._share[c.rank])
            self._tag[c.rank] += shift
            self._edge[c.rank] += shift
            self._share[c.rank] = c.min_share
            if c.min_share == 0:  # what is guaranteed nothing is owed nothing
                self._tag[c.rank] = max(self._tag[c.rank], 0)
                self._edge[c.rank] = max(self._edge[c.rank], 0)
