"""The controller of one engine's limits: what makes it grow, what cuts it, and what it never does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.core.values import Engine
from fairlane.policies.limits.adaptive import GUARD_S, KV_LEAST, PAUSE_S, SLOTS_MAX, AdaptiveLimit, Signals

ENGINE = Engine("e", 16, kv_tokens=100_000)
QUIET = Signals(running=0, tokens=0, running_there=0, waiting=0, preemptions=0)


class Play:
    """A controller and its engine, a second at a time."""

    def __init__(self, *, tpot_slo_s: float | None = None) -> None:
        self.limit = AdaptiveLimit(ENGINE, 0.0, tpot_slo_s=tpot_slo_s)
        self.now = 0.0
        self.tokens = 0

    @property
    def slots(self) -> int:
        """The limit."""
        return self.limit.engine.slots

    def pressed(self, seconds: int, **shown: Any) -> None:  # noqa: ANN401 - members of Signals
        """All slots are in use for so long, and each brings ten tokens a second; unless shown otherwise all is well."""
        for _ in range(seconds):
            self.now += 1.0
            self.tokens += 10 * self.slots
            signals = QUIET._replace(running=self.slots, running_there=self.slots, tokens=self.tokens)
            self.limit.tick(signals._replace(**shown), self.now)


def test_it_grows_while_demand_presses() -> None:
    """A slot a second at least, a fiftieth of many."""
    play = Play()
    play.pressed(31)
    assert 40 <= play.slots <= 50


def test_it_does_not_grow_without_demand() -> None:
    """A limit that nothing reaches says nothing of the engine."""
    limit = AdaptiveLimit(ENGINE, 0.0)
    assert all(limit.tick(QUIET._replace(running=12, tokens=100 * t), float(t)) is None for t in range(60))


def test_a_preemption_cuts_once_until_the_engine_runs_within_the_limit() -> None:
    """What still runs above the new limit was let in before: its preemptions say nothing new."""
    play = Play()
    play.pressed(30)
    ran = play.slots
    play.pressed(1, preemptions=5)
    cut = play.slots
    assert cut == int(0.85 * (ran + 1))
    for more in range(6, 12):
        play.now += 1.0
        play.limit.tick(QUIET._replace(running=ran, tokens=play.tokens, preemptions=more), play.now)
    assert play.slots == cut
    assert play.limit.engine.kv_tokens == 96_000


def test_it_grows_slowly_towards_where_a_preemption_came() -> None:
    """Else it would be there again in seconds."""
    play = Play()
    play.pressed(35)
    ran = play.slots
    play.pressed(1, preemptions=1)
    play.pressed(int(PAUSE_S) + 20, preemptions=1)
    assert int(0.85 * (ran + 1)) < play.slots < ran
    assert play.limit.last_move == "demand"


def test_what_waits_in_the_engine_is_taken_back_at_the_second_page() -> None:
    """One page may have caught a moment."""
    play = Play()
    play.pressed(10)
    before = play.slots
    play.pressed(1, running_there=8, waiting=before - 8)
    assert play.slots >= before
    play.pressed(1, running_there=8, waiting=before - 7)
    assert play.slots == 10
    assert play.limit.last_move == "waiting"


def test_slow_tokens_cut_once_in_a_pause() -> None:
    """By a tenth, and again only when the cut could have told."""
    play = Play(tpot_slo_s=0.05)
    play.pressed(10)
    before = play.limit.slots
    play.pressed(1, tpot_s=0.06)
    assert play.limit.slots == pytest.approx(0.9 * before)
    play.pressed(int(PAUSE_S) - 1, tpot_s=0.06)
    assert play.limit.slots == pytest.approx(0.9 * before)
    play.pressed(1, tpot_s=0.06)
    assert play.limit.slots == pytest.approx(0.81 * before)


def test_growth_that_brings_nothing_is_taken_back() -> None:
    """More requests at the same tokens a second only make each of them slower."""
    play = Play()
    play.pressed(25)
    seen = []
    for _ in range(int(2 * GUARD_S)):
        play.now += 1.0
        play.tokens += 800 - 4 * play.slots  # the more run, the fewer tokens
        play.limit.tick(QUIET._replace(running=play.slots, tokens=play.tokens), play.now)
        seen.append((play.slots, play.limit.last_move))
    assert seen[-1] == (play.slots, "no gain")
    assert play.slots < max(slots for slots, _ in seen)


def test_a_page_that_is_not_read_freezes_and_then_halves() -> None:
    """Serving goes on, with less and less; when the page is back it grows from there."""
    play = Play()
    play.pressed(10)
    before = play.slots
    for second in range(1, 200):
        play.pressed(1, stale_s=float(second))
    assert before // 2 - 1 <= play.slots <= before // 2 + 1
    play.pressed(5)
    assert play.slots > before // 2


def test_an_engine_without_a_page_is_judged_by_what_is_counted_here() -> None:
    """None is neither zero nor a reason to stop growing."""
    play = Play()
    play.pressed(20, running_there=None, waiting=None, preemptions=None)
    assert play.slots > 30


_SHOWN = st.builds(
    Signals,
    running=st.integers(0, 2000),
    tokens=st.integers(0, 100_000),
    tpot_s=st.none() | st.floats(0, 10),
    running_there=st.none() | st.integers(0, 2000),
    waiting=st.none() | st.integers(0, 2000),
    preemptions=st.none() | st.integers(0, 100),
    stale_s=st.floats(0, 10),
)


@given(st.lists(st.tuples(_SHOWN, st.floats(-1, 100)), max_size=80))
def test_whatever_is_shown_the_limits_stay_sane(story: list[tuple[Signals, float]]) -> None:
    """Counters that fall, clocks that jump back, pages full of nonsense: at least one request runs, and never too many."""
    limit = AdaptiveLimit(ENGINE, 0.0, tpot_slo_s=0.05)
    now = 0.0
    for shown, elapsed in story:
        now += elapsed
        changed = limit.tick(shown, now)
        assert changed is None or changed == limit.engine
        assert 1 <= limit.engine.slots <= SLOTS_MAX
        assert limit.engine.kv_tokens is not None
        assert KV_LEAST * 100_000 - 1 <= limit.engine.kv_tokens <= 100_000
        assert limit.engine == replace(ENGINE, slots=limit.engine.slots, kv_tokens=limit.engine.kv_tokens)
