"""The engine model: equal to its rules applied step by step, and true to its books."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.sim.engine.batching import SimulatedEngine
from fairlane.sim.engine.blocks import Blocks
from fairlane.sim.engine.jobs import Job, What
from fairlane.sim.engine.model import PS_PER_S, EngineModel, Plan
from tests.sim.naive import NaiveEngine, Seen, Sequence

SMALL = EngineModel(kv_tokens=160, step_tokens=16, running_max=5)


def play(engine: SimulatedEngine, requests: list[Sequence]) -> list[Seen]:
    """Feeds requests as they come, aborts them as they leave, and checks the books at each event."""
    seen: list[Seen] = []
    jobs = {r.id: Job(r.id, r.prompt, r.output, r.priority) for r in requests}
    agenda = sorted([(r.at, 0, r.id) for r in requests] + [(r.leaves_at, 1, r.id) for r in requests if math.isfinite(r.leaves_at)])
    now = 0.0
    while agenda or engine.next_event() is not None:
        following = engine.next_event()
        now = min(agenda[0][0] if agenda else math.inf, math.inf if following is None else following)
        for event in engine.advance(now):
            assert event.at == now
            seen.append((event.at, event.what.name, event.job.id))
        assert 0 <= engine.kv_used <= engine.model.kv_tokens
        while agenda and agenda[0][0] <= now:
            _, leaving, number = agenda.pop(0)
            if leaving:
                engine.abort(jobs[number], now)
            else:
                assert engine.add(jobs[number], now)
    assert (engine.kv_used, engine.running, engine.waiting) == (0, 0, 0)
    assert alone(engine, engine.model.kv_tokens // engine.model.block_tokens * engine.model.block_tokens, now)
    return seen


def alone(engine: SimulatedEngine, tokens: int, now: float) -> bool:
    """Whether one more request can have so much KV, which it cannot if a block got lost."""
    job = Job(10**6, tokens, 1)
    engine.add(job, now)
    while (at := engine.next_event()) is not None:
        engine.advance(at)
    return job.ended_at is not None and not job.preemptions


@st.composite
def some_requests(draw: st.DrawFn) -> list[Sequence]:
    """A few requests that each fit into the small engine alone; some leave early."""
    requests = []
    at = 0.0
    for number in range(1, draw(st.integers(1, 12)) + 1):
        at = round(at + draw(st.sampled_from([0.0, 0.0001, 0.05, 1.0]) | st.floats(0, 0.3)), 6)
        leaves_at = round(at + draw(st.just(math.inf) | st.floats(0.0001, 2.0)), 6)
        sizes = draw(st.integers(1, 90)), draw(st.integers(1, 60))
        requests.append(Sequence(number, *sizes, draw(st.integers(0, 2)), at, leaves_at))
    return requests


models = st.builds(
    replace,
    st.just(SMALL),
    block_tokens=st.sampled_from([1, 3, 16]),
    by_priority=st.booleans(),
    whole_prompts=st.booleans(),
    keep_blocks=st.booleans(),
    admits_when_preempting=st.booleans(),
)


@given(some_requests(), models)
@settings(max_examples=300, deadline=None)
def test_plans_equal_their_steps_one_by_one(requests: list[Sequence], model: EngineModel) -> None:
    """Whatever arrives and leaves, runs of steps taken at once bring the same events at the very same moments as single steps."""
    engine = SimulatedEngine(model)
    seen = play(engine, requests)
    naive = NaiveEngine(model, requests)
    naive.play()
    left = {r.id: r.leaves_at for r in requests}
    assert sorted(e for e in seen if e[0] < left[e[2]]) == sorted(e for e in naive.seen if e[0] < left[e[2]])
    assert [t for t, _, _ in seen] == sorted(t for t, _, _ in seen)
    assert engine.preemptions == naive.preemptions
    assert naive.blocks_most * model.block_tokens <= model.kv_tokens


@given(st.lists(st.tuples(st.integers(1, 90), st.integers(1, 60)), min_size=1, max_size=20))
@settings(max_examples=60, deadline=None)
def test_no_token_is_lost_or_made_up(sizes: list[tuple[int, int]]) -> None:
    """Every answer is as long as asked for, and prompt work beyond the prompts is exactly what preemptions repeated."""
    engine = SimulatedEngine(SMALL)
    jobs = [Job(i, *size) for i, size in enumerate(sizes)]
    for job in jobs:
        assert engine.add(job, 0.0)
    while (at := engine.next_event()) is not None:
        engine.advance(at)
    assert [job.produced for job in jobs] == [output for _, output in sizes]
    assert engine.decoded_tokens == sum(output for _, output in sizes)
    assert engine.prefilled_tokens == sum(job.prefilled_tokens for job in jobs)
    assert engine.prefilled_tokens - sum(prompt for prompt, _ in sizes) >= engine.preemptions * (engine.preemptions > 0)
    assert all(job.first_token_at is not None and job.ended_at is not None and job.first_token_at <= job.ended_at for job in jobs)
    assert engine.preemptions or engine.prefilled_tokens == sum(prompt for prompt, _ in sizes)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(2, 60), st.integers(1, 9)), min_size=1, max_size=8), st.sampled_from([1, 3, 16]))
@settings(max_examples=100, deadline=None)
def test_blocks_of_decoding_sequences_are_a_recount(sizes: list[tuple[int, int, int]], size: int) -> None:
    """What is due in a round, what many rounds take, and how long the free blocks last is what counting each sequence gives."""
    jobs = [Job(i, prompt, output, end_round=left) for i, (prompt, output, left) in enumerate(sizes)]

    def held(now: int) -> int:
        return sum(math.ceil((job.prompt_tokens + job.output_tokens - 1 - job.end_round + now) / size) for job in jobs)

    for now, steps in ((0, 1), (0, 7), (2, 40), (5, 2 * size)):
        blocks = Blocks(10_000 * size, size)
        for job in jobs:
            blocks.enter(job)
        taken = held(now + steps) - held(now)
        assert blocks.due(now) == held(now + 1) - held(now)
        blocks.grow(now, steps)
        assert blocks.free == blocks.total - taken
        blocks.free = taken
        assert blocks.last(now, steps) == steps
        assert held(now + blocks.last(now, 1000)) - held(now) == taken
        assert held(now + blocks.last(now, 1000) + 1) - held(now) > taken


def step(engine: SimulatedEngine) -> None:
    """Carries out what the engine planned: a step, or several alike."""
    at = engine.next_event()
    assert at is not None
    engine.advance(at)


@pytest.mark.parametrize(("block_tokens", "running"), [(1, 2), (16, 1)])
def test_a_sequence_holds_whole_blocks(block_tokens: int, running: int) -> None:
    """Two prompts of 17 tokens go into 48, but not into three blocks of 16."""
    engine = SimulatedEngine(EngineModel(kv_tokens=48, block_tokens=block_tokens, whole_prompts=True))
    for number in (1, 2):
        assert engine.add(Job(number, 17, 3), 0.0)
    step(engine)
    assert engine.running == running


def test_a_sequence_is_preempted_where_it_needs_a_block() -> None:
    """With two blocks of 16 each, two prompts of 16 tokens have 17 tokens of answer before the next token finds no block."""
    engine = SimulatedEngine(EngineModel(kv_tokens=64, block_tokens=16))
    first, last = Job(1, 16, 20), Job(2, 16, 20)
    engine.add(first, 0.0)
    engine.add(last, 0.0)
    while not engine.preemptions:
        step(engine)
        engine.next_event()
    assert (first.preemptions, engine.produced(first), last.preemptions, last.produced) == (0, 17, 1, 17)


@pytest.mark.parametrize(("keep_blocks", "again"), [(False, 33), (True, 17)])
def test_who_was_preempted_finds_what_nobody_took(keep_blocks: bool, again: int) -> None:
    """Of two full blocks given back the other sequence needs one, the later; the first need not be computed again."""
    engine = SimulatedEngine(EngineModel(kv_tokens=64, block_tokens=16, keep_blocks=keep_blocks))
    for number in (1, 2):
        assert engine.add(Job(number, 16, 20), 0.0)
    while engine.next_event() is not None:
        step(engine)
    assert (engine.preemptions, engine.prefilled_tokens) == (1, 16 + 16 + again)


def test_a_step_that_preempts_admits_nothing() -> None:
    """What was preempted comes back a step later at the earliest, also where a chunk of it would fit at once."""
    engine = SimulatedEngine(EngineModel(kv_tokens=64, step_tokens=16, running_max=5, block_tokens=1))
    engine.add(Job(1, 10, 40), 0.0)
    engine.add(Job(2, 40, 20), 0.0)
    while not engine.preemptions:
        step(engine)
        engine.next_event()
    before = engine.prefilled_tokens
    step(engine)
    assert (engine.prefilled_tokens, engine.waiting) == (before, 1)
    step(engine)
    assert engine.prefilled_tokens == before + 15


def test_one_request_takes_what_its_steps_cost() -> None:
    """A prompt of two chunks and three tokens of answer: four steps whose times follow from the coefficients."""
    engine = SimulatedEngine(EngineModel())
    job = Job(1, 3000, 3)
    engine.add(job, 5.0)
    while (at := engine.next_event()) is not None:
        engine.advance(at)
    prefill = 0.009 + 0.00006 * 2048 + 0.00006 + 60e-9 * 2048 + 0.009 + 0.00006 * 952 + 0.00006 + 60e-9 * 3000
    decode = 2 * (0.009 + 0.00006) + 60e-9 * (3001 + 3002)
    assert job.first_token_at == pytest.approx(5.0 + prefill, abs=1e-9)
    assert job.ended_at == pytest.approx(5.0 + prefill + decode, abs=1e-9)


def test_a_request_larger_than_the_cache_is_not_taken() -> None:
    """What could never end is refused, and leaves no trace; of the cache, only whole blocks count."""
    engine = SimulatedEngine(replace(SMALL, kv_tokens=175))
    assert not engine.add(Job(1, 150, 12), 0.0)
    assert engine.add(Job(2, 150, 11), 0.0)
    assert engine.waiting == 1


def test_what_is_watched_is_told_once_at_that_token() -> None:
    """A watched token count is reported when it is there, also where the wish came first; a later wish replaces it."""
    engine = SimulatedEngine(EngineModel())
    job = Job(1, 10, 100)
    job.watched = 20
    engine.add(job, 0.0)
    found = []
    while (at := engine.next_event()) is not None:
        for event in engine.advance(at):
            found.append((event.what, engine.produced(event.job)))
            if event.what is What.PRODUCED and len(found) == 2:
                engine.watch(job, 70)
                engine.watch(job, 40)
    assert found == [(What.FIRST_TOKEN, 1), (What.PRODUCED, 20), (What.PRODUCED, 40), (What.ENDED, 100)]


def test_slow_steps_take_a_multiple() -> None:
    """Slowed down in the middle of an answer, the rest takes as many times as long."""
    ends = []
    for factor in (1, 3):
        engine = SimulatedEngine(EngineModel(kv_token_s=0.0))
        job = Job(1, 100, 101)
        engine.add(job, 0.0)
        first = engine.next_event()
        assert first is not None
        engine.advance(first)
        engine.slow_down(factor, first)
        while (at := engine.next_event()) is not None:
            engine.advance(at)
        ends.append((job.ended_at or 0.0) - first)
    assert ends[1] == pytest.approx(3 * ends[0])


@given(st.integers(1, 10**11), st.integers(0, 10**8), st.integers(2, 2000), st.floats(0, 100))
@settings(max_examples=100, deadline=None)
def test_a_plan_is_cut_at_the_first_boundary(fixed: int, more: int, steps: int, now: float) -> None:
    """No step that begins after the cut is left in, and none that ends before it is left out."""
    plan = Plan(0, steps, fixed + more, more, ())
    cut = plan.cut(now)
    assert 1 <= cut.steps <= steps
    assert cut.steps == 1 or plan.end(cut.steps - 1) / PS_PER_S < now
    assert cut.steps == steps or plan.end(cut.steps) / PS_PER_S >= now


@pytest.mark.parametrize("wrong", [{"running_max": 2048}, {"block_tokens": 0}, {"step_s": 0.0}, {"kv_token_s": -1e-9}])
def test_a_model_without_sense_is_refused(wrong: dict[str, float]) -> None:
    """Coefficients that would make time stand still, and batches that starve a sequence, cannot be set."""
    with pytest.raises(ValueError, match=r"."):
        EngineModel(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(0, 1), (1, 0)])
def test_an_empty_request_is_refused(size: tuple[int, int]) -> None:
    """A request has a prompt and an answer."""
    with pytest.raises(ValueError, match="at least one token"):
        Job(1, *size)
