"""What a policy must be: an order between the classes of a pool, and a limit on what one engine runs."""

from collections.abc import Sequence
from typing import Protocol

from fairlane.core.values import Engine, PriorityClass, Request


class ClassOrder(Protocol):
    """Decides which class's head goes first, and keeps the books for it.

    A class is *backlogged* while it has a waiting request that its own and its tenant's `max_running` let start.
    """

    def enter(self, rank: int) -> None:
        """The class has become backlogged: idle time must have earned it nothing."""
        ...

    def order(self, heads: Sequence[Request]) -> Sequence[Request]:
        """The heads of the backlogged classes (given by rank), in the order in which they are to be tried."""
        ...

    def is_owed(self, rank: int) -> bool:
        """Whether the class is behind its guarantee."""
        ...

    def charge(self, request: Request) -> None:
        """Books `request.cost` to its class at dispatch, and sets `request.owed`."""
        ...

    def correct(self, request: Request, delta: int) -> None:
        """Books the difference between what a request cost and what it was charged."""
        ...

    def reconfigure(self, classes: Sequence[PriorityClass]) -> None:
        """Takes new shares for the same classes; debts and claims in cost units stay."""
        ...


class Limit(Protocol):
    """What one engine may run. `take` and `release` come in pairs for each request that runs there."""

    running: int

    def fits(self, request: Request) -> bool:
        """Whether the request may start now."""
        ...

    def take(self, request: Request) -> None:
        """Counts the request as running."""
        ...

    def release(self, request: Request) -> None:
        """Takes the request out again; exactly once for each `take`."""
        ...

    def load(self) -> float:
        """How full the engine is: 0.0 is empty, 1.0 is full."""
        ...

    def reconfigure(self, engine: Engine) -> None:
        """Takes new numbers; running requests stay counted."""
        ...
