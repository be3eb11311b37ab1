"""What one request went through, gathered on its way and told once at its end: to the metrics and to the log."""

from dataclasses import dataclass

from fairlane.errors import Family, Refused
from fairlane.gateway.wire.exchange import Exchange
from fairlane.telemetry.log import Log
from fairlane.telemetry.metrics import Metrics
from fairlane.telemetry.table import NO_CLASS

CLIENT_LEFT = 499  # in the log, where the client left before there was a status


@dataclass(slots=True)
class Trail:
    """Times are of the event loop's clock."""

    request_id: str
    arrived_at: float
    caller: str = ""
    cls: str = NO_CLASS
    model: str | None = None
    engine: str | None = None
    queue_s: float | None = None
    ttft_s: float | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    status: int = 0
    outcome: str = Family.INVALID
    reason: str | None = None

    def refuse(self, refused: Refused) -> None:
        """The request gets an error answer of ours."""
        rule = refused.rule
        self.status = rule.status
        self.reason = refused.reason
        self.outcome = "failed" if rule.family is Family.UPSTREAM else rule.family

    def tell(self, exchange: Exchange, now: float, metrics: Metrics, log: Log | None) -> None:
        """Counts the request, and writes its line where requests are logged."""
        metrics.finished(self.cls, self.outcome, now - self.arrived_at, tenant=self.caller or None)
        if self.reason is not None:
            metrics.shed(self.cls, self.reason)
        if log is None:
            return
        log.request(
            self.request_id,
            tenant=self.caller,
            cls=self.cls,
            model=self.model,
            route=exchange.path[:64],
            status=self.status or CLIENT_LEFT,
            outcome=self.outcome,
            reason=self.reason,
            engine=self.engine,
            queue_ms=_ms(self.queue_s),
            ttft_ms=_ms(self.ttft_s),
            total_ms=1000 * (now - self.arrived_at),
            tokens_in=self.tokens_in,
            tokens_out=self.tokens_out,
        )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
