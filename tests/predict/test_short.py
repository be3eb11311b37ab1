"""What counts as short for the fast lane."""

import pytest

from fairlane.predict.asked import Asked
from fairlane.predict.short import HELD_MIN, KEYS_MAX, SEEN, ShortRequests

ASKED = Asked("t", "m", template=7)


def taught(short: int, long: int, asked: Asked = ASKED) -> ShortRequests:
    """A memory of so many short answers, and then so many long ones."""
    known = ShortRequests(100, 64)
    for tokens in [64] * short + [65] * long:
        known.learn(asked, tokens)
    return known


@pytest.mark.parametrize(
    ("prompt", "cap", "choices", "expected"),
    [(100, 64, 1, True), (101, 64, 1, False), (1, 65, 1, False), (1, 16, 4, True), (1, 16, 5, False), (1, None, 1, False)],
)
def test_a_declared_cap_decides_for_all_choices(prompt: int, cap: int | None, choices: int, *, expected: bool) -> None:
    """Prompt and the caps of all choices must be within the lane's; who declares nothing has no history yet."""
    assert ShortRequests(100, 64).is_short(ASKED, prompt, cap, choices) is expected


@pytest.mark.parametrize(
    ("short", "long", "expected"),
    [(HELD_MIN - 1, 0, False), (HELD_MIN, 0, True), (90, SEEN - HELD_MIN, True), (90, SEEN - HELD_MIN + 1, False)],
)
def test_without_a_cap_the_last_answers_decide(short: int, long: int, *, expected: bool) -> None:
    """27 of the last 30 must have been short, and older ones do not count."""
    assert taught(short, long).is_short(ASKED, 1, None, 1) is expected


def test_a_lost_lane_comes_back_after_as_many_short_answers() -> None:
    """After 30 long answers it takes 27 short ones."""
    known = taught(30, 30)
    for number in range(HELD_MIN):
        assert not known.is_short(ASKED, 1, None, 1), number
        known.learn(ASKED, 1)
    assert known.is_short(ASKED, 1, None, 1)


def test_a_history_is_its_tenants_models_and_templates_own() -> None:
    """Nobody profits from, or pays for, the answers of others."""
    known = taught(30, 0)
    for other in (ASKED._replace(tenant="u"), ASKED._replace(model="n"), ASKED._replace(template=8)):
        assert not known.is_short(other, 1, None, 1)
    assert not known.is_short(None, 1, None, 1)
    known.learn(None, 1)


def test_many_names_fill_no_memory() -> None:
    """Old histories are forgotten when there are too many."""
    known = ShortRequests(100, 64)
    for number in range(3 * KEYS_MAX):
        known.learn(ASKED._replace(template=number), 1)
    assert len(known._answers) <= KEYS_MAX
