"""The nested limit of an engine, against the definition of the peak."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlane.core.request import Request
from fairlane.core.values import Engine, Tenant
from fairlane.policies.limits.nested import KV_RATIO, LOWER_RATIO, NestedLimit
from tests.core.world import request

T = Tenant("t")
SEQUENCES = st.sampled_from([1, 1, 2, 3, 7])


def sized(prompt: int, upper: int, rank: int = 0, sequences: int = 1) -> Request:
    """A request whose output is predicted to stay below `upper`."""
    r = request(T, rank, prompt=prompt, output=upper)
    r.sequences = sequences
    return r


def peak(running: list[tuple[int, int, int]]) -> int:
    """The most that (held, to come, sequences) hold together, by the definition: at the end of each, those not longer are gone.

    In a step each sequence gains a token, and the last step of a request may be a part of one.
    """
    ends = [(a, ceil(rem / sequences), sequences) for a, rem, sequences in running]
    return max((sum(a + end * count for a, other, count in ends if other >= end) for _, end, _ in ends), default=0)


@given(
    running=st.lists(st.tuples(st.integers(1, 500), st.integers(1, 300), st.integers(0, 400), SEQUENCES), max_size=12),
    new=st.tuples(st.integers(1, 500), st.integers(1, 300), SEQUENCES),
    kv=st.integers(500, 8000),
    rank=st.integers(0, 3),
    known=st.booleans(),
)
def test_a_request_fits_exactly_if_the_peak_with_it_does(
    running: list[tuple[int, int, int, int]], new: tuple[int, int, int], kv: int, rank: int, *, known: bool
) -> None:
    """However far the running ones have come, and if the limit is set while they run, the answer is that of the definition."""
    limit = NestedLimit(Engine("e", 200, kv_tokens=kv if known else None))
    held = []
    for prompt, upper, produced, sequences in running:
        r = sized(prompt, upper, 0, sequences)
        limit.take(r)
        if produced:
            limit.progress(r, produced)
            if produced > 0.9 * upper:
                upper = int(1.25 * produced) + 16  # noqa: PLW2901 - the prediction is raised
        held.append((prompt + produced, upper - produced, sequences))
    cap = int(kv * (KV_RATIO if rank == 0 else KV_RATIO * LOWER_RATIO))
    asked = sized(*new[:2], rank, new[2])
    assert limit.fits(asked) or known
    limit.reconfigure(Engine("e", 200, kv_tokens=kv))
    assert limit.fits(asked) == (not running or peak([*held, new]) <= cap)


def test_prompts_without_a_first_token_are_bounded() -> None:
    """A second long prompt waits for the first to be prefilled, and any prompt may start if none is."""
    limit = NestedLimit(Engine("e", 10, prefill_tokens=1000))
    first = sized(10, 10)
    limit.take(first)
    assert not limit.fits(sized(995, 10))
    assert limit.fits(sized(990, 10))
    limit.progress(first, 1)
    assert limit.fits(sized(5000, 10))


@pytest.mark.parametrize("streams", [True, False])
def test_only_requests_whose_progress_is_seen_count_as_prefilling(streams: bool) -> None:
    """Nobody would ever say that the prompt of an answer that comes as a whole is prefilled."""
    limit = NestedLimit(Engine("e", 10, prefill_tokens=100))
    r = sized(80, 10)
    r.streams = streams
    limit.take(r)
    assert limit.fits(sized(80, 10)) == (not streams)
    limit.progress(r, 1)
    assert limit.fits(sized(5000, 10))


def test_an_empty_engine_takes_anything_and_a_full_one_nothing() -> None:
    """A request beyond every number starts alone; slots are never exceeded."""
    limit = NestedLimit(Engine("e", 1, kv_tokens=100, prefill_tokens=100))
    huge = sized(5000, 5000)
    assert limit.fits(huge)
    limit.take(huge)
    assert not limit.fits(sized(1, 1))
    limit.release(huge)
    assert (limit.running, limit.tokens, limit.final, limit.prefilling) == (0, 0, 0, 0)


@given(
    steps=st.lists(st.tuples(st.sampled_from(["take", "progress", "release"]), st.integers(0, 9), st.integers(1, 400)), max_size=30),
    new=st.tuples(st.integers(1, 300), st.integers(1, 300)),
)
@example([("take", 9, 400), ("take", 4, 400), ("progress", 0, 310)], (250, 300))  # the first is now the one that ends first
@example([("take", 9, 400)] * 3 + [("release", 0, 1)], (200, 200))  # only without the third there is room
def test_the_answer_follows_whatever_changes(steps: list[tuple[str, int, int]], new: tuple[int, int]) -> None:
    """Asked after each start, each token and each end, the answer is that of the definition for what runs then."""
    limit = NestedLimit(Engine("e", 100, kv_tokens=2000))
    running: list[Request] = []
    for what, index, tokens in steps:
        if what == "take" or not running:
            running.append(sized(tokens, 20 + 37 * index))
            limit.take(running[-1])
        elif what == "progress":
            limit.progress(running[index % len(running)], tokens)
        else:
            limit.release(running.pop(index % len(running)))
        held = [(r.held_tokens, r.coming_tokens, 1) for r in running]
        assert limit.fits(sized(*new)) == (not running or peak([*held, (*new, 1)]) <= int(2000 * KV_RATIO))


def test_each_sequence_takes_a_slot() -> None:
    """A request of three takes three of four, so another of two has to wait and one of one does not."""
    limit = NestedLimit(Engine("e", 4))
    three = sized(10, 30, sequences=3)
    limit.take(three)
    assert (limit.running, limit.load()) == (3, 0.75)
    assert not limit.fits(sized(10, 20, sequences=2))
    assert limit.fits(sized(10, 10))
    limit.release(three)
    assert limit.running == 0


def test_more_sequences_than_slots_run_alone() -> None:
    """A request that could never have a slot for each sequence starts on an engine that runs nothing, and keeps all others out."""
    limit = NestedLimit(Engine("e", 4))
    many, one = sized(10, 1280, sequences=128), sized(10, 10)
    limit.take(one)
    assert not limit.fits(many)
    limit.release(one)
    assert limit.fits(many)
    limit.take(many)
    assert not limit.fits(one)
    limit.release(many)
    limit.reconfigure(Engine("e", 0))
    assert not limit.fits(many)


def test_what_was_learned_of_prefills_outlives_other_numbers() -> None:
    """An engine whose slots move each second would have no bound most of the time; a number that is set takes its place."""
    limit = NestedLimit(Engine("e", 16))
    limit.prefill_tokens = 700
    limit.reconfigure(Engine("e", 17, kv_tokens=900))
    assert limit.prefill_tokens == 700
    limit.reconfigure(Engine("e", 17, prefill_tokens=50))
    assert limit.prefill_tokens == 50
    limit.reconfigure(Engine("e", 17))
    assert limit.prefill_tokens is None
