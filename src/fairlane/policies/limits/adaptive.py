"""How many requests one engine should run at once, found while it works.

The limit starts low and grows while demand presses on it: by a fiftieth each second, by one at least. It is cut when the engine
shows that it has too much: by 0.85 at a preemption, since a request that loses its KV cache is computed again; by 0.9 where
tokens come slower than was promised; and to what runs plus `WAITING_MAX` where the engine itself has more than that waiting on
two pages in a row, for what waits there is out of our order. A preemption lowers the part of the KV cache that may be reserved
as well; it is given back while demand presses, on the slots or, with slots left, on the cache. After a cut nothing grows for `PAUSE_S`, and
nothing while the engine has its next requests waiting. Up to where a preemption came growth is slow: it would only come again.

A guard against growth that brings nothing: if the limit has grown and the covariance of requests that ran and tokens a second
over `GUARD_S` is not above zero, it goes back to where it was when that was last so, and stays there as long. The time that a
whole answer takes is never looked at: it tells how long answers are. Where an engine's page cannot be read any more the limit
sinks after `STALE_S` by 2 % a second to half, because that is no reason to stop serving and none to send more; with the page it is back.

An engine that never had a page is cut by 0.9 where first tokens come late (see `signals`), not below where it began, for long
prompts make them late, too; and it grows only while they are seen to come in time. A refusal for want of room cuts any engine to
what it had then, at most to half.

A count of preemptions that falls is that of an engine which began anew, or of another replica behind the same address, whose page is
read by turns: from one page to the next it may rise by all that the other ever had. So it is not believed for `FALLEN_S`.

Sources: additive increase, multiplicative decrease on engine signals; the covariance guard of Uber's Cinnamon.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from fairlane.core.values import Engine
from fairlane.policies.limits.signals import WAITING_MAX, Signals

START_SLOTS = 16  # of an engine that does not tell its own
SLOTS_MAX = 1024
PRESSING = 0.8  # of the limit runs: more would be taken
GROWTH = 0.02  # a second
PAUSE_S = 5.0  # after a cut
PREEMPTION_CUT, TPOT_CUT, TTFT_CUT, REFUSAL_CUT = 0.85, 0.9, 0.9, 0.5
NEAR, NEAR_GROWTH = 0.85, 0.1  # of what ran at the last preemption; of the usual growth from there on
FALLEN_S = 120.0  # for which a count of preemptions that fell is not believed: with replicas behind one address it falls again before
KV_CUT, KV_GROWTH, KV_LEAST = 0.04, 0.002, 0.76  # parts of what may be reserved
GUARD_S = 30.0
GUARD_TICKS_MIN = 10
STALE_S = 3.0
STALE_DECAY = 0.02  # a second
STEP_S_MAX = 2.0  # by which a limit moves at once, however long the last tick is ago

GROWTHS = ("start", "demand")
CUTS = ("preemption", "waiting", "tpot", "ttft", "refused", "no_gain", "stale")
MOVES = (*GROWTHS, *CUTS)
"""Why a limit is where it is."""


class Second(NamedTuple):
    """What was seen at one tick."""

    at: float
    running: int
    tokens_per_s: float


class AdaptiveLimit:
    """The controller of one engine. Feed it `tick` about once a second; it returns the engine's numbers where they have changed."""

    def __init__(
        self, engine: Engine, now: float, *, tpot_slo_s: float | None = None, stale_after_s: float = STALE_S, kv_pinned: bool = False
    ) -> None:
        self.engine = engine  # as it is limited now
        self.slots = float(engine.slots)
        self.kv_ratio = 1.0
        self.last_move = "start"  # one of `MOVES`
        self._told = engine  # by the engine itself, apart from its slots
        self._tpot_slo_s = tpot_slo_s
        self._stale_after_s = stale_after_s
        self._kv_pinned = kv_pinned
        self._at = now
        self._grows_at = now  # not before
        self._before: Signals | None = None
        self._too_many = float(SLOTS_MAX)  # ran at the last preemption
        self._believed_at = now  # the engine's count of preemptions, from then on
        self._crowded = 0  # pages in a row with too many waiting
        self._seen: deque[Second] = deque()
        self._good = self.slots  # the limit when growth last brought something
        self._fresh_slots = self.slots  # before it began to sink for want of a page

    def tick(self, signals: Signals, now: float) -> Engine | None:
        """Moves the limits by what the engine shows, and returns the new numbers; None if they are the same."""
        before, self._before = self._before, signals
        elapsed = now - self._at
        self._at = now
        if before is None or elapsed <= 0.0:
            return None
        self._note(signals, before, now, elapsed)
        step_s = min(elapsed, STEP_S_MAX)
        if signals.stale_s > self._stale_after_s:
            self._fade(step_s)
            return self._changed()
        if self.last_move == "stale":
            self.slots, self.last_move = self._fresh_slots, "demand"
        if not (self._cut(signals, before, now) or self._cut_by_answers(signals, now)):
            self._grow(signals, now, step_s)
        self._fresh_slots = self.slots
        return self._changed()

    def renew(self, engine: Engine) -> Engine:
        """Takes what the engine tells of itself, and returns its numbers; how many it should run is found here."""
        self._told = engine
        self._changed()
        return self.engine

    def _note(self, signals: Signals, before: Signals, now: float, elapsed: float) -> None:
        self._seen.append(Second(now, signals.running, (signals.tokens - before.tokens) / elapsed))
        while self._seen[0].at < now - GUARD_S:
            self._seen.popleft()

    def _cut(self, signals: Signals, before: Signals, now: float) -> bool:
        """Whether the engine tells that it has too much: the limits are lower then."""
        preempted = signals.preemptions is not None and before.preemptions is not None and signals.preemptions > before.preemptions
        if signals.preemptions is not None and before.preemptions is not None and signals.preemptions < before.preemptions:
            self._believed_at = now + FALLEN_S
        if preempted and now >= self._believed_at and signals.running <= self.slots:
            self.kv_ratio = max(KV_LEAST, self.kv_ratio - KV_CUT)
            self._too_many = float(signals.running + 1)
            return self._lower(PREEMPTION_CUT * (signals.running + 1), "preemption", now)
        if signals.page is None or signals.page != before.page:
            self._crowded = self._crowded + 1 if signals.crowded else 0
            if self._crowded > 1 and signals.running_there is not None:
                return self._lower(signals.running_there + WAITING_MAX, "waiting", now)
        return False

    def _cut_by_answers(self, signals: Signals, now: float) -> bool:
        """Whether what is seen of its answers shows that. Once in a pause, for a cut takes a while to show."""
        if now < self._grows_at:
            return False
        if signals.refused_at is not None:
            return self._lower(max(signals.refused_at, REFUSAL_CUT * self.slots), "refused", now)
        if self._tpot_slo_s is not None and signals.tpot_s is not None and signals.tpot_s > self._tpot_slo_s:
            return self._lower(TPOT_CUT * self.slots, "tpot", now)
        return signals.late and self._lower(max(TTFT_CUT * self.slots, START_SLOTS), "ttft", now)

    def _lower(self, slots: float, why: str, now: float) -> bool:
        self.slots = max(1.0, min(self.slots, slots))
        self._good = min(self._good, self.slots)
        self._grows_at = now + PAUSE_S
        self._seen.clear()  # what is seen from now on has other reasons
        self.last_move = why
        return True

    def _grow(self, signals: Signals, now: float, step_s: float) -> None:
        if now < self._grows_at or signals.unknown or signals.supplied or signals.running > self.slots:
            return  # what runs beyond the limit was let in before a cut
        presses = signals.running >= PRESSING * int(self.slots)
        if presses or signals.backlog:  # with slots left it is the KV cache that lets nothing more in
            self._grow_kv(step_s)
        if presses:
            self._grow_slots(now, step_s)

    def _grow_kv(self, step_s: float) -> None:
        if self.kv_ratio < 1.0:
            self.kv_ratio = min(1.0, self.kv_ratio + KV_GROWTH * step_s)
            self.last_move = "demand"

    def _grow_slots(self, now: float, step_s: float) -> None:
        if len(self._seen) >= GUARD_TICKS_MIN and self.slots > self._good:
            if _gain(self._seen) <= 0.0:
                self._lower(self._good, "no_gain", now)
                self._grows_at = now + GUARD_S
                return
            self._good = self.slots
        if self.slots > self._too_many:  # and nothing came of it: it was for another reason then
            self._too_many = float(SLOTS_MAX)
        growth = max(1.0, GROWTH * self.slots) * (NEAR_GROWTH if self.slots >= NEAR * self._too_many else 1.0)
        self.slots = min(SLOTS_MAX, self.slots + step_s * growth)
        self.last_move = "demand"

    def _fade(self, step_s: float) -> None:
        """Nobody knows how the engine is: less and less, to half."""
        self.slots = max(self._fresh_slots / 2, self.slots * (1.0 - STALE_DECAY) ** step_s)
        self.last_move = "stale"

    def _changed(self) -> Engine | None:
        kv_tokens = self._told.kv_tokens
        if kv_tokens is not None and not self._kv_pinned:
            kv_tokens = int(kv_tokens * self.kv_ratio)
        engine = replace(self._told, slots=max(1, int(self.slots)), kv_tokens=kv_tokens)
        if engine == self.engine:
            return None
        self.engine = engine
        return engine


def _gain(seen: Sequence[Second]) -> float:
    """The covariance of what ran and tokens a second, up to a factor; above zero where always as many ran, which tells nothing."""
    if len({one.running for one in seen}) == 1:
        return 1.0
    mean_running = sum([one.running for one in seen]) / len(seen)
    mean_rate = sum([one.tokens_per_s for one in seen]) / len(seen)
    return sum([(one.running - mean_running) * (one.tokens_per_s - mean_rate) for one in seen])
