"""The limit of an engine whose numbers are set by hand."""

from fairlane.core.values import Engine, Request


class StaticLimit:
    """Fixed numbers: `slots` requests, and `token_budget` predicted tokens if there is one.

    An engine that runs nothing takes any request, so that one larger than the budget is not stuck for ever.
    """

    __slots__ = ("running", "slots", "token_budget", "tokens")

    def __init__(self, engine: Engine) -> None:
        self.running = 0
        self.tokens = 0
        self.reconfigure(engine)

    def fits(self, request: Request) -> bool:
        """Whether a slot is free and, beside other requests, the predicted tokens are within the budget."""
        if self.running >= self.slots:
            return False
        return self.running == 0 or self.token_budget is None or self.tokens + request.tokens <= self.token_budget

    def take(self, request: Request) -> None:
        """Occupies one slot and the predicted tokens."""
        self.running += 1
        self.tokens += request.tokens

    def release(self, request: Request) -> None:
        """Frees what `take` occupied."""
        self.running -= 1
        self.tokens -= request.tokens

    def load(self) -> float:
        """The fuller of slots and token budget."""
        by_slots = self.running / self.slots if self.slots else 1.0
        return max(by_slots, self.tokens / self.token_budget) if self.token_budget else by_slots

    def reconfigure(self, engine: Engine) -> None:
        """Takes new numbers; a smaller limit stops nothing that runs."""
        self.slots = engine.slots
        self.token_budget = engine.token_budget
