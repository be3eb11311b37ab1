"""Whether an engine heeds the order that it is told, learned from the order in which first tokens come.

An engine that is started without priorities takes the stamp of each request and ignores it, and no page of its says so. But where two
requests wait inside it together, the one that was sent later and is the more urgent has its first token first only where the stamp
counts, and second only where it does not. A pair tells nothing unless the one that came second had waited for `WAITED_S` when the other
was sent or had its first token: else one may have been computed already when the other came. Nor does it where their tokens came
together, out of one step, or where a prompt is long, for that takes its time after the start. Only streams show their first token.

Most requests do not wait inside an engine, and cost no more than a comparison and an entry in a list of `KEPT`.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from fairlane.core.request import Request

KEPT = 64  # requests that started last
WAITED_S = 1.0
APART_S = 0.1
PROMPT_TOKENS_MAX = 4096
VERDICTS = 16  # that count, the latest
VERDICTS_MIN = 8
CLEAR = 0.75  # of them must agree, for engines are not exact and neither is what is seen of them


class Started(NamedTuple):
    """A request whose first token has come. All times are of one monotonic clock; `counts_as` is its stamp on that clock."""

    sent_at: float
    counts_as: float
    first_at: float
    tells: bool  # its prompt is short


class Heeding:
    """One engine, which is `stamped` or told no order. `heeds` is `unknown`, `yes` or `no`; `changed` is called when it changes."""

    def __init__(self, step_s: float, changed: Callable[[str], None], *, stamped: bool) -> None:
        self.heeds = "unknown" if stamped else "no"
        self._stamped = stamped
        self._step_s = step_s
        self._changed = changed
        self._started: deque[Started] = deque(maxlen=KEPT)
        self._verdicts: deque[bool] = deque(maxlen=VERDICTS)

    def first_token(self, request: Request, sent_at: float, now: float) -> None:
        """The request, sent to the engine at that time, has its first token now."""
        if not self._stamped:
            return
        counts_as = sent_at if request.owed else sent_at + request.rank * self._step_s
        one = Started(sent_at, counts_as, now, request.prompt_tokens <= PROMPT_TOKENS_MAX)
        if one.tells and now - sent_at >= WAITED_S:
            self._judge(one)
        self._started.append(one)

    def restarted(self) -> None:
        """The engine was away, and may have been started in another way."""
        self._started.clear()
        self._verdicts.clear()
        if self._stamped:
            self._conclude("unknown")

    def _judge(self, late: Started) -> None:
        """Compares it with those that had their first token before it."""
        earlier = [one for one in self._started if one.tells and late.first_at - one.first_at >= APART_S]
        overtaken = any(one.sent_at - late.sent_at >= WAITED_S and one.counts_as < late.counts_as for one in earlier)
        passed_over = any(
            one.sent_at < late.sent_at and late.counts_as < one.counts_as and one.first_at - late.sent_at >= WAITED_S for one in earlier
        )
        if overtaken != passed_over:  # both: it is neither's order
            self._verdicts.append(overtaken)
            if len(self._verdicts) >= VERDICTS_MIN:
                part = sum(self._verdicts) / len(self._verdicts)
                self._conclude("yes" if part >= CLEAR else "no" if part <= 1.0 - CLEAR else self.heeds)

    def _conclude(self, heeds: str) -> None:
        if heeds != self.heeds:
            self.heeds = heeds
            self._changed(heeds)
