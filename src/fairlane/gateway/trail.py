"""What one request went through, gathered on its way and told once at its end: to the metrics and to the log."""

from dataclasses import dataclass

from fairlane.errors import Family, Refused
from fairlane.telemetry.table import NO_CLASS


@dataclass(slots=True)
class Trail:
    """Times are of the event loop's clock."""

    request_id: str
    arrived_at: float
    path: str
    caller: str = ""
    cls: str = NO_CLASS
    model: str | None = None
    pool: str = ""
    engine: str | None = None
    queue_s: float | None = None
    ttft_s: float | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost: int = 0
    status: int = 0
    outcome: str = Family.INVALID
    reason: str | None = None

    def refuse(self, refused: Refused) -> None:
        """The request gets an error answer of ours."""
        rule = refused.rule
        self.status = rule.status
        self.reason = refused.reason
        self.outcome = "failed" if rule.family is Family.UPSTREAM else rule.family
