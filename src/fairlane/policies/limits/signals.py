"""What a controller is told of an engine, and what of it means that the engine has too much.

An engine without a page of metrics is judged by its first tokens alone: where the 0.9 quantile of the time that they take is far
above the same while next to nothing ran, requests wait inside the engine. Quantiles of the same kind are compared, so that a
few long prompts among short ones do not look like waiting.
"""

from typing import NamedTuple

CALM_RUNNING = 2  # requests of an engine that is next to idle, the one that is measured included
TTFT_FACTOR, TTFT_SLACK_S = 2.0, 0.5  # of the calm time, and beyond it, that the first token may take
WAITING_MAX = 2  # requests that may wait in the engine: it needs its next one before the place is free


class Signals(NamedTuple):
    """How an engine is. `running`, `tokens`, output tokens ever, and `backlog`, requests that wait for an engine, are counted here.

    The rest is None where it is not known. `tpot_s` is the 0.95 quantile of the time per output token. What runs and waits there, and
    all preemptions ever, the engine tells on a page with the number `page` (None: each time a new one). `ttft_s` is the 0.9 quantile of
    the lately measured times to the first token, `calm_ttft_s` that of those measured while at most `CALM_RUNNING` ran. `refused_at`
    is the least number of other requests that the engine had when it refused one for want of room, since that was asked last.
    """

    running: int
    tokens: int
    tpot_s: float | None = None
    running_there: int | None = None
    waiting: int | None = None
    preemptions: int | None = None
    stale_s: float = 0.0  # since the engine's page was read
    page: int | None = None
    ttft_s: float | None = None
    calm_ttft_s: float | None = None
    refused_at: int | None = None
    backlog: int = 0

    @property
    def blind(self) -> bool:
        """Whether the engine tells nothing of its load."""
        return self.running_there is None and self.waiting is None and self.preemptions is None

    @property
    def unknown(self) -> bool:
        """Whether nothing at all shows what more requests do to the engine."""
        return self.blind and (self.ttft_s is None or self.calm_ttft_s is None)

    @property
    def late(self) -> bool:
        """Whether first tokens of an engine that tells nothing come much later than while it was calm."""
        if not self.blind or self.ttft_s is None or self.calm_ttft_s is None:
            return False
        return self.ttft_s > TTFT_FACTOR * self.calm_ttft_s + TTFT_SLACK_S

    @property
    def supplied(self) -> bool:
        """Whether as many wait inside the engine as it needs to have no gap: more would bring nothing."""
        return self.waiting is not None and self.waiting >= WAITING_MAX

    @property
    def crowded(self) -> bool:
        """Whether more waits inside the engine than it needs."""
        return self.waiting is not None and self.waiting > WAITING_MAX
