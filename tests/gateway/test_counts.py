"""What is counted of an engine's answers."""

import pytest

from fairlane.gateway.control.counts import CALM_KEPT, FEWEST, KEPT_S, TIMED_TOKENS_MIN, Counts
from fairlane.policies.limits.signals import CALM_RUNNING


def test_few_measurements_are_none() -> None:
    """One slow answer is no quantile."""
    counts = Counts()
    for number in range(FEWEST):
        assert counts.ttft_s(1.0) is counts.calm_ttft_s() is None
        counts.first_token(0.1 * number, CALM_RUNNING, 1.0)
    assert counts.ttft_s(1.0) == counts.calm_ttft_s() == pytest.approx(0.4)


def test_old_measurements_do_not_count() -> None:
    """The engine has had other loads since; how it is when it is calm stays true."""
    counts = Counts()
    for number in range(FEWEST):
        counts.first_token(0.1, CALM_RUNNING, float(number))
        counts.first_token(0.9, CALM_RUNNING + 1, float(number) + 0.5)
        counts.answered(TIMED_TOKENS_MIN, 0.7, float(number))
    assert counts.tpot_s(KEPT_S) == pytest.approx(0.1)
    assert counts.ttft_s(KEPT_S) == 0.9
    assert counts.ttft_s(KEPT_S + 4.9) is counts.tpot_s(KEPT_S + 4.9) is None
    assert counts.calm_ttft_s() == 0.1


def test_short_answers_have_no_pace() -> None:
    """Their few tokens may have come in one piece."""
    counts = Counts()
    for _ in range(FEWEST):
        counts.answered(TIMED_TOKENS_MIN - 1, 9.0, 0.0)
    assert counts.tpot_s(0.0) is None


def test_the_fewest_others_at_a_refusal_are_told_once() -> None:
    """Of a burst the last refusal tells most."""
    counts = Counts()
    for others in (9, 4, 6):
        counts.refused(others)
    assert (counts.take_refused(), counts.take_refused()) == (4, None)


def test_a_cut_makes_what_was_measured_before_it_worthless() -> None:
    """Else it would be followed by another for the same reason."""
    counts = Counts()
    for _ in range(FEWEST):
        counts.first_token(0.1, 1, 0.0)
        counts.answered(TIMED_TOKENS_MIN, 0.7, 0.0)
    counts.forget()
    assert counts.tpot_s(0.0) is counts.ttft_s(0.0) is None
    assert counts.calm_ttft_s() == 0.1


def test_how_it_was_at_its_start_is_forgotten() -> None:
    """The first requests met an engine that was cold; enough later ones say how it is when it is calm."""
    counts = Counts()
    for _ in range(FEWEST):
        counts.first_token(20.0, 1, 0.0)
    for _ in range(CALM_KEPT):
        counts.first_token(0.1, 1, 1.0)
    assert counts.calm_ttft_s() == 0.1


def test_an_engine_that_was_away_may_be_another() -> None:
    """What was measured before counts only until it has been measured anew."""
    counts = Counts()
    for _ in range(CALM_KEPT):
        counts.first_token(0.1, 1, 0.0)
    counts.returned()
    assert counts.calm_ttft_s() == 0.1
    for _ in range(FEWEST):
        counts.first_token(3.0, 1, 1.0)
    assert counts.calm_ttft_s() == 3.0
