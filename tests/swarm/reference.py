"""The guaranteed minimum once more, in the plainest form: which class is owed when, and by how much it is behind.

Written from the rule and not from the code: V is all cost charged; a class's tag T is what V was when its guarantee was last served up
to date. It is told in the order in which things happen. Numbers are kept as T·m, with m in basis points, as the rule wants exactness.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fairlane.core.values import BASIS_POINTS
from tests.swarm.model import Job


@dataclass(slots=True)
class Account:
    """One class: its share, its tag, the tag at its last lift, and before which start that was."""

    share: int
    tag: int = 0
    edge: int = 0
    lifted: int = 0
    backlogged: bool = False


class Minimum:
    """All classes of a pool."""

    def __init__(self, shares: Sequence[int]) -> None:
        self.total = 0
        self.starts = 0
        self.accounts = [Account(share) for share in shares]
        self._paid: dict[int, tuple[bool, int, int]] = {}  # of a running job: whether it was owed, how far it moved the tag, its start

    def look(self, corrections: Collection[tuple[Job, int]], backlogged: Collection[int]) -> None:
        """Before starts: what was corrected since, and which classes may start something now."""
        for job, delta in corrections:
            self._correct(job, delta)
        self.note(backlogged)

    def note(self, backlogged: Collection[int]) -> None:
        """A class that becomes backlogged is lifted to V, and one that no more is can be lifted again."""
        for rank, account in enumerate(self.accounts):
            if rank in backlogged and not account.backlogged:
                account.edge = self.total * account.share
                account.tag = max(account.tag, account.edge)
                account.lifted = self.starts
            account.backlogged = rank in backlogged

    def owed(self, rank: int) -> bool:
        """Whether the class is behind its guarantee."""
        return self.accounts[rank].tag < self.total * self.accounts[rank].share

    def finish(self, job: Job) -> float:
        """The V up to which the guarantee of an owed class would be served with the job."""
        account = self.accounts[job.request.rank]
        return (account.tag + job.charged * BASIS_POINTS) / account.share

    def start(self, job: Job) -> None:
        """A job starts: an owed class pays in full, another only what leaves it at most one request ahead of V."""
        account, cost = self.accounts[job.request.rank], job.charged * BASIS_POINTS
        owed, at_total = self.owed(job.request.rank), self.total * account.share
        after = account.tag + cost if owed else max(account.tag, at_total + cost)
        self.starts += 1
        self._paid[job.request.id] = owed, after - account.tag, self.starts
        account.tag = after
        self.total += job.charged

    def _correct(self, job: Job, delta: int) -> None:
        """V moves by the difference; the tag as far as it was paid for; and those lifted since the start move along with V."""
        account = self.accounts[job.request.rank]
        owed, paid, start = self._paid[job.request.id]
        moved = delta * BASIS_POINTS if owed else max(min(delta * BASIS_POINTS, 0), -paid)
        self._paid[job.request.id] = owed, paid + moved, start
        self.total += delta
        account.tag = max(account.tag + moved, account.edge)
        for other in self.accounts:
            if other.lifted >= start:
                other.tag += delta * other.share
                other.edge += delta * other.share
