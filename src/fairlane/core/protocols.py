"""What can be replaced: the order between classes and inside a class, what one engine may run, and which engine runs what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fairlane.core.values import Engine, PriorityClass

if TYPE_CHECKING:
    from fairlane.core.flows import Flow
    from fairlane.core.places import EngineState
    from fairlane.core.request import Request


class ClassOrder(Protocol):
    """Decides which class's head goes first, and keeps the books for it.

    A class is *backlogged* while it has a waiting request that its own and its tenant's `max_running` let start.
    """

    def enter(self, rank: int) -> None:
        """The class has become backlogged: idle time must have earned it nothing."""

    def order(self, heads: Sequence[Request]) -> Sequence[Request]:
        """The heads of the backlogged classes (given by rank), in the order in which they are to be tried."""

    def is_owed(self, rank: int, without: Request | None = None) -> bool:
        """Whether the class is behind its guarantee, or would be if a running request of it, `without`, had not started."""

    def keeps(self, rank: int) -> bool:
        """Whether no request of the class may start now: what room there is is kept for more urgent ones."""

    def charge(self, request: Request) -> None:
        """Books `request.cost` to its class at its start, and sets `request.owed`."""

    def correct(self, request: Request, delta: int) -> None:
        """Books the difference between what a request cost and what it was charged."""

    def leave(self, rank: int) -> None:
        """A request of the class that started runs no more; its cost is corrected."""

    def resize(self, slots: int) -> None:
        """The engines that are open run so many requests together now, if memory allows."""

    def reconfigure(self, classes: Sequence[PriorityClass]) -> None:
        """Takes new shares for the same classes; debts and claims in cost units stay."""


class TenantOrder(Protocol):
    """Decides which tenant of a class goes next, and which of its requests.

    `by_head`: `turn` depends on the flow's head. `shared_clock`: turns of different classes are compared with each other.
    """

    by_head: bool
    shared_clock: bool

    def key(self, request: Request, spec: PriorityClass) -> float:
        """Where the request stands inside its tenant's flow: the least goes first. It never changes."""

    def turn(self, flow: Flow) -> float:
        """Where the flow stands among the flows of its class: the least goes first."""


@dataclass(frozen=True)
class Policy:
    """A whole order: between classes, and inside each."""

    classes: ClassOrder
    tenants: TenantOrder


class Limit(Protocol):
    """What one engine may run. `take` and `release` come in pairs for each request that runs there."""

    slots: int  # most sequences that may run at once
    running: int  # sequences of the requests that run
    prefilling: int  # prompt tokens of streamed requests without a first token
    prefill_tokens: int | None  # most of them beside another, learned where the engine's spec sets none

    def fits(self, request: Request) -> bool:
        """Whether the request may start now."""

    def fits_in(self, request: Request) -> float:
        """How long until the request is predicted to fit, in output tokens of what runs."""

    def reserve(self, request: Request | None) -> None:
        """From now on other classes may start only what ends before the request is predicted to fit; None ends that."""

    def take(self, request: Request) -> None:
        """Counts the request as running."""

    def release(self, request: Request) -> None:
        """Takes the request out again; exactly once for each `take`."""

    def progress(self, request: Request, produced: int) -> None:
        """The running request has produced so many output tokens so far, at least one."""

    def load(self) -> float:
        """How full the engine is: 0.0 is empty, 1.0 is full."""

    def reconfigure(self, engine: Engine) -> None:
        """Takes new numbers; running requests stay counted."""


class Placement(Protocol):
    """Chooses the engines of one pool's requests, by what it has learned of when first tokens come."""

    def choose(self, request: Request, engines: Sequence[EngineState]) -> EngineState:
        """One of these, which are several and have room for the request."""

    def is_late(self, request: Request, engines: Sequence[EngineState], now: float) -> bool:
        """Whether its first token would be too late on each of these, the open ones, so that none should work for it."""

    def take(self, request: Request, engine: EngineState, now: float) -> None:
        """The request starts there now; the engine's limit does not count it yet."""

    def first_token(self, request: Request, now: float) -> None:
        """The first token of a request that runs came now."""

    def prefills(self, engine: EngineState, seconds: float) -> int | None:
        """How many prompt tokens the engine prefills in that time; None as long as too little is known."""

    def told(self, request: Request, cached_tokens: int) -> None:
        """A request's engine told how many tokens of the prompt it had in its cache; as many as `request.cached_tokens` were expected."""

    def shown(self, engine: str) -> Mapping[str, float]:
        """What was learned of the engine, for people."""

    def forget(self, engine: str) -> None:
        """The engine went out, and its caches with it."""
