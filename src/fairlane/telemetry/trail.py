"""What one request went through, gathered on its way and told once at its end: to the metrics and to the log."""

from dataclasses import dataclass

from fairlane.errors import Family, Refused
from fairlane.telemetry.table import NO_CLASS


@dataclass
class Trail:
    """One request. What did not come to be is None: an engine for one that was refused, tokens for one that failed."""

    request_id: str
    arrived_at: float  # by `time.monotonic`
    path: str
    caller: str = ""  # its label; empty where it is not known
    cls: str = NO_CLASS
    model: str | None = None
    pool: str = ""  # of its engine; empty where there was none
    engine: str | None = None
    queue_s: float | None = None  # from its arrival to its start on an engine
    ttft_s: float | None = None  # from its arrival to the first byte of the answer's body
    tokens_in: int | None = None  # real ones: both are known, or neither
    tokens_out: int | None = None
    cost: int = 0  # of the real tokens
    status: int = 0  # 0: the client left before there was one
    outcome: str = Family.INVALID
    reason: str | None = None
    yields: int = 0  # how often it gave its place to a more urgent request
    yielded_tokens: int = 0  # that engines had made for it until then, at most; they are not among its real ones

    def refuse(self, refused: Refused) -> None:
        """The request gets an error answer of ours."""
        rule = refused.rule
        self.status = rule.status
        self.reason = refused.reason
        self.outcome = "failed" if rule.family is Family.UPSTREAM else rule.family

    def gave_way(self, tokens: int) -> None:
        """The request gave its place away; so many tokens were made for it in vain, at most."""
        self.yields += 1
        self.yielded_tokens += tokens
