"""What is remembered of an engine's prefix cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlane.core.request import Prefix
from fairlane.policies.placement.prefixes import ENTRIES_MAX, KV_TOKENS_UNKNOWN, Prefixes

SYSTEM = 7


def turn(conversation: int, number: int) -> Prefix:
    """The prefix of a turn of a conversation, all with one system prompt of 50 tokens."""
    return Prefix(100 * conversation + number, 100 * conversation + number - 1 if number else 0, SYSTEM, 50)


def test_a_conversation_is_found_by_its_turn_before() -> None:
    """The next turn finds the whole prompt before it, another conversation the system prompt, and one without any nothing."""
    prefixes = Prefixes()
    prefixes.note(turn(1, 0), 400, 10_000)
    assert prefixes.find(turn(1, 1), 600) == 400
    assert prefixes.find(turn(1, 0), 400) == 400
    assert prefixes.find(turn(2, 0), 300) == 50
    assert prefixes.find(Prefix(5), 300) == 0
    assert prefixes.find(turn(1, 1), 90) == 90


def test_tokens_that_are_shared_count_once() -> None:
    """Two conversations of three turns each, with one system prompt, take as much as their last turns without it, and it."""
    prefixes = Prefixes()
    for number, tokens in enumerate((100, 300, 700)):
        prefixes.note(turn(1, number), tokens, 10_000)
        prefixes.note(turn(2, number), tokens, 10_000)
    assert prefixes.tokens == 2 * (700 - 50) + 50
    prefixes.note(turn(2, 2), 700, 10_000)  # once more
    assert prefixes.tokens == 2 * (700 - 50) + 50


def test_the_longest_unused_conversation_is_forgotten_and_the_system_prompt_of_all_stays() -> None:
    """An engine of 1,000 tokens that gets conversations of 400 has room for the last two, whose system prompt each renews."""
    prefixes = Prefixes()
    for conversation in (1, 2, 3, 4):
        prefixes.note(turn(conversation, 0), 400, 1000)
    assert [prefixes.find(turn(conversation, 1), 500) for conversation in (1, 2, 3, 4)] == [50, 50, 400, 400]


def test_a_conversation_that_goes_on_is_not_forgotten_turn_by_turn() -> None:
    """What the last turn holds goes as a whole: as long as it is remembered, all its tokens are counted."""
    prefixes = Prefixes()
    for number in range(9):
        prefixes.note(Prefix(number + 1, number), 100 * (number + 1), 1000)
    prefixes.note(Prefix(77), 150, 1000)
    assert prefixes.find(Prefix(10, 9), 1000) == 0
    assert prefixes.tokens == 150


def test_many_short_prompts_fill_no_memory() -> None:
    """The number of prefixes is bounded as well as their tokens, also where the engine does not tell its size."""
    prefixes = Prefixes()
    for number in range(ENTRIES_MAX + 10):
        prefixes.note(Prefix(number + 1), 1, 10**9)
    assert len(prefixes) == ENTRIES_MAX
    unknown = Prefixes()
    for number in range(10):
        unknown.note(Prefix(number + 1), KV_TOKENS_UNKNOWN // 4, None)
    assert len(unknown) == 4


keys = st.integers(0, 6)


@given(
    kv=st.integers(1, 2000),
    prompts=st.lists(st.tuples(st.integers(1, 6), keys, keys, st.integers(1, 300), st.integers(1, 900)), max_size=60),
)
def test_what_is_remembered_is_what_is_counted_and_fits(kv: int, prompts: list[tuple[int, int, int, int, int]]) -> None:
    """Whatever comes: the tokens are those of all entries, never more than the engine's, and nothing is found that was not noted."""
    prefixes = Prefixes()
    for whole, before, template, template_tokens, tokens in prompts:
        prefix = Prefix(whole, before + 10 if before else 0, template + 20 if template else 0, template_tokens if template else 0)
        prefixes.note(prefix, tokens, kv)
        assert prefixes.tokens == sum(own for _, own in prefixes._kept.values()) <= kv
        assert all(own >= 0 for _, own in prefixes._kept.values())
        assert 0 <= prefixes.find(prefix, tokens) <= tokens
    assert prefixes.find(Prefix(99, 98, 97), 500) == 0
