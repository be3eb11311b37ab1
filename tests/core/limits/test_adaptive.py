"""The controller of one engine's limits: what makes it grow, what cuts it, and what it never does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.core.values import Engine
from fairlane.policies.limits.adaptive import FALLEN_S, GUARD_S, KV_LEAST, MOVES, PAUSE_S, SLOTS_MAX, AdaptiveLimit
from fairlane.policies.limits.signals import Signals
from fairlane.telemetry.table import LIMIT_MOVES

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


def test_a_count_that_falls_is_not_believed_for_a_while() -> None:
    """Of replicas behind one address each page is another's; an engine that began anew is believed again when it has risen for long."""
    play = Play()
    for _ in range(100):
        play.pressed(1, preemptions=900)
        play.pressed(1, preemptions=5)
    assert play.slots > 100
    assert play.limit.kv_ratio == 1.0
    play.pressed(round(FALLEN_S), preemptions=5)
    slots = play.slots
    play.pressed(1, preemptions=6)
    assert play.slots < slots
    assert play.limit.last_move == "preemption"


def test_the_cache_is_given_back_though_slots_are_left() -> None:
    """Where it is the cache that lets nothing more in, no slot will ever press: what waits here says that more is wanted."""
    play = Play()
    play.pressed(2)
    play.pressed(1, preemptions=1)
    cut = play.limit.kv_ratio
    play.pressed(60, preemptions=1, running=4)
    assert play.limit.kv_ratio == cut
    slots = play.slots
    play.pressed(60, preemptions=1, running=4, backlog=1)
    assert play.limit.kv_ratio == 1.0
    assert play.slots == slots


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


def test_it_does_not_grow_while_the_engine_has_its_next_requests() -> None:
    """One more would only wait there; so it comes to rest at what the engine runs and two."""
    play = Play()
    for _ in range(30):
        play.pressed(1, running_there=min(20, play.slots), waiting=max(0, play.slots - 20))
    assert play.slots == 22
    assert play.limit.last_move == "demand"


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
    assert seen[-1] == (play.slots, "no_gain")
    assert play.slots < max(slots for slots, _ in seen)


def test_a_page_that_is_not_read_freezes_and_then_halves() -> None:
    """Serving goes on, with less and less; when the page is back so is the limit, however often it comes and goes."""
    play = Play()
    play.pressed(10)
    before = play.slots
    for second in range(1, 200):
        play.pressed(1, stale_s=float(second))
    assert before // 2 <= play.slots <= before // 2 + 2
    for _ in range(3):
        play.pressed(1)
        assert play.slots >= before
        for second in range(1, 60):
            play.pressed(1, stale_s=float(second))
        assert play.slots < before


def test_beyond_the_old_trouble_growth_is_as_usual() -> None:
    """It came for another reason then, and must not hold the limit down for ever."""
    play = Play()
    play.pressed(35)
    play.limit.tick(QUIET._replace(running=4, tokens=play.tokens, preemptions=1), play.now + 1)
    assert play.slots == 4
    play.now += 1
    play.pressed(int(PAUSE_S) + 50, preemptions=1)
    assert play.slots > 30


BLIND = {"running_there": None, "waiting": None, "preemptions": None}


def test_an_engine_without_a_page_grows_while_its_first_tokens_come_in_time() -> None:
    """What is counted here is enough to grow by, and nothing at all is not: its queue would stay unseen."""
    play = Play()
    play.pressed(20, **BLIND)
    play.pressed(20, **BLIND, ttft_s=0.1)
    assert play.slots == ENGINE.slots
    play.pressed(20, **BLIND, ttft_s=0.3, calm_ttft_s=0.1)
    assert play.slots > 30


def test_late_first_tokens_cut_an_engine_without_a_page() -> None:
    """Once in a pause, and not below where it began; with a page they may have any reason, and long prompts are one always."""
    play = Play()
    play.pressed(10, ttft_s=9.0, calm_ttft_s=0.1)
    before = play.limit.slots
    assert before > ENGINE.slots
    play.pressed(2, **BLIND, ttft_s=0.8, calm_ttft_s=0.1)
    assert play.limit.slots == pytest.approx(0.9 * before)
    assert play.limit.last_move == "ttft"
    play.pressed(200, **BLIND, ttft_s=0.8, calm_ttft_s=0.1)
    assert play.slots == ENGINE.slots


def test_a_refusal_cuts_to_what_the_engine_had() -> None:
    """At most to half at once: a single one may have come by chance."""
    play = Play()
    play.pressed(1)
    play.pressed(1, refused_at=12)
    assert (play.slots, play.limit.last_move) == (12, "refused")
    play.pressed(int(PAUSE_S) - 1, refused_at=0)
    assert play.slots == 12
    play.pressed(1, refused_at=0)
    assert play.slots == 6


def test_a_page_that_is_seen_twice_is_one_page() -> None:
    """An engine that is probed seldom shows one moment for many ticks."""
    play = Play()
    play.pressed(1, page=0)
    play.pressed(5, running_there=8, waiting=9, page=1)
    assert play.slots == ENGINE.slots
    play.pressed(1, running_there=8, waiting=9, page=2)
    assert play.slots == 10


def test_what_the_engine_tells_of_itself_is_taken_and_its_slots_stay() -> None:
    """A restart with another cache keeps the part that may be reserved of it."""
    play = Play()
    play.pressed(2)
    play.pressed(1, preemptions=1)
    slots = play.slots
    renewed = play.limit.renew(replace(ENGINE, slots=99, kv_tokens=50_000, context=4096))
    assert renewed == replace(ENGINE, slots=slots, kv_tokens=48_000, context=4096) == play.limit.engine


def test_a_pinned_cache_is_not_moved() -> None:
    """Only the slots are found then."""
    limit = AdaptiveLimit(ENGINE, 0.0, kv_pinned=True)
    for second in range(1, 4):
        limit.tick(QUIET._replace(running=16, preemptions=second), float(second))
    assert limit.engine == replace(ENGINE, slots=14)


def test_a_long_gap_is_one_step() -> None:
    """Nobody saw what would have happened in a minute during which the engine was out."""
    play = Play()
    play.pressed(2)
    before = play.slots
    play.now += 60.0
    play.pressed(1)
    assert before < play.slots <= before + 2


def test_every_reason_for_a_move_has_its_series() -> None:
    """The metrics know each by name; they stand apart from the policies, so that both lists are kept by hand."""
    assert MOVES == LIMIT_MOVES


_SHOWN = st.builds(
    Signals,
    running=st.integers(0, 2000),
    tokens=st.integers(0, 100_000),
    tpot_s=st.none() | st.floats(0, 10),
    running_there=st.none() | st.integers(0, 2000),
    waiting=st.none() | st.integers(0, 2000),
    preemptions=st.none() | st.integers(0, 100),
    stale_s=st.floats(0, 10),
    page=st.none() | st.integers(0, 3),
    ttft_s=st.none() | st.floats(0, 10),
    calm_ttft_s=st.none() | st.floats(0, 10),
    refused_at=st.none() | st.integers(0, 2000),
    backlog=st.integers(0, 5),
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
