"""The engine on a clock that the tests turn: whatever the timers do, its times are the model's."""

import asyncio
import random
from collections.abc import Callable
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.demo.live import LiveEngine, Run
from fairlane.sim.engine.batching import SimulatedEngine
from fairlane.sim.engine.jobs import Job
from fairlane.sim.engine.model import EngineModel

SMALL = EngineModel(kv_tokens=160, step_tokens=16, running_max=5)
Arrivals = list[tuple[float, int, int]]


class Call:
    """A timer of the hand-turned clock."""

    def __init__(self, when: float, callback: Callable[[], object]) -> None:
        self.when = when
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Hand:
    """A clock turned by hand, whose timers ring late by a random time."""

    def __init__(self, late_s: float = 0.0, at: float = 1000.0) -> None:
        self.at = at
        self.late_s = late_s
        self.rng = random.Random(1)
        self.calls: list[Call] = []

    def time(self) -> float:
        return self.at

    def call_at(self, when: float, callback: Callable[[], object], /) -> Call:
        self.calls.append(Call(max(self.at, when) + self.rng.uniform(0, self.late_s), callback))
        return self.calls[-1]

    def turn(self, to: float = 1e9) -> None:
        """Lets all timers ring that ring by then."""
        while (when := self.next()) <= to:
            self.at = when
            call = next(call for call in self.calls if call.callback and call.when == when)
            ring, call.callback = call.callback, None
            assert ring
            ring()
        self.at = max(self.at, to)

    def next(self) -> float:
        """When the next timer rings."""
        self.calls = [call for call in self.calls if call.callback]
        return min((call.when for call in self.calls), default=float("inf"))


def arrivals() -> st.SearchStrategy[Arrivals]:
    """Some requests that fit into the small engine each, by their times; hardly ever two things happen at once."""
    one = st.tuples(st.floats(0.0001, 0.2), st.integers(1, 90), st.integers(1, 60))
    return st.lists(one, min_size=1, max_size=10).map(
        lambda rows: [(at, prompt, output) for at, (_, prompt, output) in zip(accumulate(row[0] for row in rows), rows, strict=True)]
    )


def alone(model: EngineModel, prompt: int, output: int) -> Job:
    """What the model says of a request that is alone on its engine."""
    engine, job = SimulatedEngine(model), Job(1, prompt, output)
    assert engine.add(job, 0.0)
    while (at := engine.next_event()) is not None:
        engine.advance(at)
    return job


def in_virtual_time(rows: Arrivals) -> list[tuple[float | None, float | None]]:
    """First and last token of each request by the model alone."""
    engine = SimulatedEngine(SMALL)
    jobs = [Job(n, prompt, output) for n, (_, prompt, output) in enumerate(rows)]
    for job, (at, _, _) in zip(jobs, rows, strict=True):
        engine.advance(at)
        engine.add(job, at)
    while (at_ := engine.next_event()) is not None:
        engine.advance(at_)
    return [(job.first_token_at, job.ended_at) for job in jobs]


@settings(deadline=None)
@given(rows=arrivals(), late_s=st.sampled_from([0.0, 0.001, 0.3]))
def test_times_are_the_models(rows: Arrivals, late_s: float) -> None:
    """First and last tokens come at the moments the model gives them, however late the timers ring."""
    clock = Hand(late_s, at=0.0)
    live = LiveEngine(SMALL, clock)
    runs = []
    for at, prompt, output in rows:
        clock.turn(at)
        clock.at = at
        runs.append(live.start(prompt, output))
    clock.turn()
    assert [(run.job.first_token_at, run.job.ended_at) for run in runs] == in_virtual_time(rows)
    assert [(run.tokens, run.over) for run in runs] == [(output, True) for _, _, output in rows]
    assert live.load()[:3] == (0, 0, 0.0)


def test_the_first_token_takes_as_long_as_the_prompt_is() -> None:
    """Each prompt's first token comes when the model has computed it: with the steps it needs, and a longer prompt later."""
    model = EngineModel()
    firsts = []
    for prompt in (100, 1000, 10_000):
        clock = Hand()
        run = LiveEngine(model, clock).start(prompt, 5)
        clock.turn()
        assert (run.job.first_token_at, run.job.ended_at) == (alone(model, prompt, 5).first_token_at, alone(model, prompt, 5).ended_at)
        firsts.append(run.job.first_token_at or 0.0)
    cost = model.step_s + model.sequence_s
    assert firsts[0] == pytest.approx(cost + 100 * (model.prefill_token_s + model.kv_token_s))
    assert firsts[1] - firsts[0] == pytest.approx(900 * (model.prefill_token_s + model.kv_token_s))
    assert firsts[2] > 5 * cost + 10_000 * model.prefill_token_s


def test_speed_makes_a_second_shorter() -> None:
    """At ten times the speed the first token comes after a tenth of the time, to whoever looks at the clock."""
    clock = Hand()
    run = LiveEngine(EngineModel(), clock, speed=10).start(1000, 1)
    takes = (alone(EngineModel(), 1000, 1).ended_at or 0.0) / 10
    clock.turn(1000 + takes * 0.99)
    assert not run.over
    clock.turn(1000 + takes * 1.01)
    assert run.over


def test_who_leaves_frees_kv_and_its_place() -> None:
    """A running request that leaves gives its KV back with the step, and the next one runs then; one that waits leaves at once."""
    clock = Hand()
    live = LiveEngine(EngineModel(kv_tokens=160, step_tokens=300), clock)
    first, second, third = (live.start(n, 50) for n in (100, 101, 102))
    clock.turn(1000.1)
    assert live.load()[:2] == (1, 2)
    assert first.tokens > 1
    live.leave(third)
    assert live.load()[:2] == (1, 1)
    live.leave(first)
    assert first.over
    tokens = first.tokens
    clock.turn(1000.2)
    assert live.load()[:2] == (1, 0)
    assert second.tokens > 1
    live.leave(second)
    live.leave(second)
    clock.turn()
    assert live.load() == (0, 0, 0.0, 0)
    assert first.tokens == tokens


def test_a_request_over_the_cache_is_refused() -> None:
    """What could never fit into the KV cache's whole blocks is an error of the caller."""
    live = LiveEngine(EngineModel(kv_tokens=170), Hand())
    assert live.context == 160
    with pytest.raises(ValueError, match="at most 160 tokens"):
        live.start(100, 61)
    live.start(100, 60)


def test_each_step_of_a_stream_is_told() -> None:
    """Who waits for more gets one token a step while it keeps up, and all that came while it slept."""

    async def read(run: Run, clock: Hand, least: int = 0) -> list[int]:
        seen = [0]
        while not run.over:
            waiting = asyncio.ensure_future(run.more(max(least, seen[-1])))
            while not waiting.done():
                clock.turn(clock.next())
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            seen.append(waiting.result())
        return seen

    async def main() -> None:
        clock = Hand()
        live = LiveEngine(EngineModel(), clock)
        assert await read(live.start(5, 20), clock) == list(range(21))
        assert await read(live.start(5, 20), clock, least=20) == [0, 20]
        asleep = live.start(5, 20)
        clock.turn()
        assert await asleep.more(0) == 20

    asyncio.run(main())
