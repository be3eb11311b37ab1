"""The hold of one engine for a head that fits nowhere: when that is predicted to fit, and who may start until then."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf

from hypothesis import given
from hypothesis import strategies as st

from fairlane.core.request import Request, Start
from fairlane.core.scheduler import Scheduler
from fairlane.core.values import Engine, Tenant
from fairlane.policies.limits.nested import KV_RATIO, NestedLimit
from tests.core.limits.test_limit import SEQUENCES, peak, sized
from tests.core.world import make, request

A, B, C = Tenant("a"), Tenant("b"), Tenant("c")
SMALL = Engine("e", 8, kv_tokens=1200)
LARGE = Engine("large", 8, kv_tokens=1200)


def full(engine: Engine, *sizes: tuple[int, int]) -> tuple[NestedLimit, list[Request]]:
    """A limit where requests of so many prompt and output tokens run, and these."""
    limit = NestedLimit(engine)
    running = [request(A, 2, prompt=prompt, output=output) for prompt, output in sizes]
    for r in running:
        limit.take(r)
    return limit, running


@given(
    running=st.lists(
        st.tuples(st.integers(1, 500), st.integers(1, 300), st.integers(0, 250), st.booleans(), SEQUENCES), min_size=1, max_size=10
    ),
    head=st.tuples(st.integers(1, 900), st.integers(0, 300), SEQUENCES),
    kv=st.integers(300, 4000),
    slots=st.integers(1, 10),
)
def test_the_moment_is_an_end_at_which_the_head_fits_and_did_not_before(
    running: list[tuple[int, int, int, bool, int]], head: tuple[int, int, int], kv: int, slots: int
) -> None:
    """By the definition of the peak: what has ended by then is gone, the rest has grown; what is not seen to progress may be gone."""
    limit = NestedLimit(Engine("e", slots, kv_tokens=kv))
    held = []
    for prompt, upper, produced, streams, sequences in running:
        r = sized(prompt, upper, 0, sequences)
        r.streams = streams
        limit.take(r)
        if streams:
            limit.progress(r, produced) if produced else None
            held.append((r.held_tokens, ceil(r.coming_tokens / sequences), sequences))

    def fits(after: int) -> bool:
        rest = [(tokens + after * n, (end - after) * n, n) for tokens, end, n in held if end > after or after == 0]
        return not rest or (sum(n for _, _, n in rest) + head[2] <= slots and peak([*rest, head]) <= int(kv * KV_RATIO))

    moment = limit.fits_in(sized(*head[:2], 0, head[2]))
    ends = sorted({0, *(end for _, end, _ in held)})
    assert fits(int(moment))
    assert moment in ends
    assert moment == 0 or not fits(ends[ends.index(int(moment)) - 1])


def fits(limit: NestedLimit, *outputs: int, rank: int = 2) -> list[bool]:
    """Whether small requests of so many output tokens may start."""
    return [limit.fits(request(C, rank, prompt=10, output=output)) for output in outputs]


def test_only_what_ends_before_the_moment_starts_on_a_reserved_engine() -> None:
    """The head fits once the first of those that run has ended; its own class is not kept out."""
    limit, _ = full(Engine("e", 8, kv_tokens=1000), (100, 50), (100, 200), (100, 200))
    head = request(B, 1, prompt=480, output=20)
    assert not limit.fits(head)
    assert limit.fits_in(head) == 50
    limit.reserve(head)
    assert fits(limit, 49, 50) == [True, False]
    assert fits(limit, 50, rank=1) == [True]
    limit.reserve(None)
    assert fits(limit, 50) == [True]


def test_the_moment_comes_nearer_with_each_token() -> None:
    """What runs decodes in step, so its progress is the clock; if it proves longer than predicted, the moment moves away."""
    limit, (first, *_) = full(Engine("e", 8, kv_tokens=1200), (500, 100), (50, 300), (50, 300))
    limit.reserve(request(B, 1, prompt=500, output=10))
    assert fits(limit, 40, 90) == [True, True]
    limit.progress(first, 50)
    assert fits(limit, 40, 90) == [True, False]
    limit.progress(first, 89)
    assert fits(limit, 20) == [False]
    limit.progress(first, 99)
    assert fits(limit, 20, 40) == [True, False]


def test_who_started_under_a_hold_does_not_move_its_moment() -> None:
    """However much longer it proves, nothing starts once those that ran before it have made room."""
    limit, (before, *_) = full(Engine("e", 8, kv_tokens=1500), (500, 60), (50, 300), (50, 300), (50, 300))
    limit.reserve(request(B, 1, prompt=500, output=100))
    passing = request(C, 2, prompt=10, output=40)
    assert limit.fits(passing)
    limit.take(passing)
    limit.progress(passing, 100)
    assert fits(limit, 59, 60) == [True, False]
    limit.release(before)
    assert fits(limit, 1) == [False]
    limit.reserve(None)
    assert fits(limit, 1) == [True]


def test_the_moment_follows_new_numbers() -> None:
    """With fewer slots it comes later, with more at once, and without any never."""
    limit, _ = full(Engine("e", 3), (100, 50), (100, 100), (100, 200))
    head = request(B, 1, prompt=480, output=20)
    limit.reserve(head)
    limit.reconfigure(Engine("e", 2))
    assert limit.fits_in(head) == 100
    limit.reconfigure(Engine("e", 4))
    assert (limit.fits_in(head), fits(limit, 1)) == (0, [False])
    limit.reconfigure(Engine("e", 0))
    assert limit.fits_in(head) == inf
    limit.reconfigure(Engine("e", 4, kv_tokens=1000))
    assert fits(limit, 49, 50) == [True, False]


def test_a_kept_place_is_not_counted_on() -> None:
    """An ordinary head waits for one more end where the last place is for short requests; a short one does not."""
    limit, _ = full(Engine("e", 4, lane_places=1, lane_output=64), (100, 50), (100, 100), (100, 200), (100, 300))
    head, quick = request(B, 1), request(B, 1)
    quick.short = True
    assert (limit.fits_in(head), limit.fits_in(quick)) == (100, 50)


def test_a_head_of_many_sequences_waits_for_as_many_slots() -> None:
    """Two of its three slots come free with the second end; until then only what ends before may start beside it."""
    limit, _ = full(Engine("e", 4), (100, 50), (100, 100), (100, 200))
    head, small = request(B, 1), request(C, 0, output=99)
    head.sequences = 3
    assert limit.fits_in(head) == 100
    limit.reserve(head)
    assert fits(limit, 99, 100) == [True, False]
    small.sequences = 2
    assert not limit.fits(small)


def waiting(*engines: Engine, heads: tuple[Request, ...]) -> tuple[Scheduler, list[Request]]:
    """A scheduler where these wait behind requests that run: of 50 tokens on the first engine, of 300 on any other."""
    scheduler = make(engines)
    running = [request(A, 2, prompt=500, output=50 if engine is engines[0] else 300) for engine in engines]
    for r in (*running, *heads):
        scheduler.submit(r, 0.0)
        scheduler.poll(0.0)
    assert scheduler.queued == len(heads)
    return scheduler, running


def test_the_engine_that_is_predicted_to_fit_first_is_held() -> None:
    """Even if it is the fuller one."""
    scheduler, _ = waiting(replace(SMALL, slots=2), LARGE, heads=(head := request(B, 1, prompt=600, output=10),))
    places = scheduler.pools["main"].places
    places.hold(head)
    assert places.held is places.engines["e"]
    assert places.held.limit.load() > places.engines["large"].limit.load()


def test_others_start_at_the_held_engine_if_they_end_in_time() -> None:
    """The one that would be there at the moment of the head waits, and the other does not."""
    scheduler, _ = waiting(SMALL, heads=(head := request(B, 1, prompt=600, output=10),))
    scheduler.pools["main"].places.hold(head)
    late, early = request(C, 2, prompt=10, output=50), request(C, 3, prompt=10, output=49)
    scheduler.submit(late, 0.0)
    scheduler.submit(early, 0.0)
    assert scheduler.poll(0.0) == [Start(early, "e")]


def test_an_owed_class_takes_the_hold_over() -> None:
    """The engine that was held before is open to all again."""
    first, second = request(B, 1, prompt=600, output=10), request(B, 0, prompt=600, output=10)
    scheduler, (_, other) = waiting(SMALL, LARGE, heads=(first, second))
    places = scheduler.pools["main"].places
    places.hold(first)
    assert places.held is places.engines["e"]
    scheduler.progress(other, 269, 0.0)
    places.hold(second)
    assert places.held is places.engines["large"]
    assert places.engines["e"].limit.fits(request(C, 2, prompt=10, output=100))


def test_an_engine_that_is_lost_is_not_held() -> None:
    """With what it ran settled and the engine back, it serves whoever comes."""
    scheduler, _ = waiting(SMALL, LARGE, heads=(head := request(B, 1, prompt=600, output=10),))
    places = scheduler.pools["main"].places
    places.hold(head)
    assert places.held is places.engines["e"]
    scheduler.engine_report("main", "e", up=False)
    scheduler.poll(0.0)
    assert places.held is None
    scheduler.engine_report("main", "e", up=True)
    late = request(C, 2, prompt=10, output=100)
    scheduler.submit(late, 0.0)
    assert scheduler.poll(0.0) == [Start(late, "e")]
