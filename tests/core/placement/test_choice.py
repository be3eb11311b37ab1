"""Which engine takes a request: prefix caches, pace and load against each other."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane import plugins
from fairlane.core.places import EngineState
from fairlane.core.request import Prefix, Request
from fairlane.core.scheduler import Scheduler
from fairlane.core.values import Engine, Outcome, PriorityClass, Tenant, Usage
from fairlane.policies.placement.soonest import SLACK, Soonest
from fairlane.policies.placement.ttft import SAMPLES_MIN
from tests.core.world import FOUR, make, placement, request

TENANT = Tenant("t")
TWO = (Engine("a", 8, kv_tokens=100_000), Engine("b", 8, kv_tokens=100_000))


def ask(scheduler: Scheduler, prefix: Prefix | None = None, *, prompt: int = 1000, rank: int = 0, now: float = 0.0) -> Request:
    """A request that was fed, and whatever follows carried out."""
    r = request(TENANT, rank, now, prompt=prompt)
    r.prefix = prefix
    scheduler.submit(r, now)
    scheduler.poll(now)
    return r


def end(scheduler: Scheduler, r: Request, now: float = 0.0) -> None:
    """The request is answered."""
    scheduler.progress(r, 1, now)
    scheduler.settle(r, Usage(r.prompt_tokens, 5), Outcome.COMPLETED, now)
    scheduler.depart(r)
    scheduler.poll(now)


def at(r: Request) -> str:
    """Where it runs."""
    return r.engine.spec.name


def held(scheduler: Scheduler, engine: str, count: int) -> list[Request]:
    """So many short requests that run on this engine and have their first token."""
    pool, found = scheduler.pools["main"], []
    for e in pool.places.engines.values():
        if e.spec.name != engine:
            scheduler.engine_report("main", e.spec.name, up=False)
    for _ in range(count):
        found.append(ask(scheduler, prompt=1))
        scheduler.progress(found[-1], 1, 0.0)
    for e in pool.places.engines.values():
        scheduler.engine_report("main", e.spec.name, up=True)
    return found


def test_a_conversation_returns_to_its_engine() -> None:
    """Each of three turns runs where the first did, though the other engine is as idle and stands first."""
    scheduler = make(TWO)
    blocker = ask(scheduler)  # on the first engine
    first = ask(scheduler, Prefix(1))
    assert at(first) == "b"
    end(scheduler, first)
    end(scheduler, blocker)
    for number in (1, 2):
        r = ask(scheduler, Prefix(number + 1, number), prompt=1000 * number)
        assert at(r) == "b"
        assert r.cached_tokens == 1000 * max(1, number - 1)
        end(scheduler, r)


def test_one_system_prompt_draws_others_that_have_it() -> None:
    """A new conversation runs where its system prompt was, another one on the first engine."""
    scheduler = make(TWO)
    blocker = ask(scheduler)
    end(scheduler, ask(scheduler, Prefix(1, 0, 7, 600)))
    end(scheduler, blocker)
    assert at(ask(scheduler, Prefix(2, 0, 7, 600))) == "b"
    assert at(ask(make(TWO), Prefix(2, 0, 8, 600))) == "a"


@pytest.mark.parametrize(("busy", "expected"), [(2, "b"), (3, "a"), (8, "a")])
def test_an_engine_that_is_fuller_by_more_than_the_slack_is_not_preferred(busy: int, expected: str) -> None:
    """With 2 of 8 places in use it still is, with 3 or all 8 the conversation goes elsewhere at once."""
    scheduler = make(TWO)
    placement(scheduler).known.clear()
    held(scheduler, "b", busy)
    known = placement(scheduler)._of(scheduler.pools["main"].places.engines["b"])
    known.prefixes.note(Prefix(1), 20_000, None)
    r = ask(scheduler, Prefix(2, 1), prompt=21_000)
    assert at(r) == expected


def test_one_place_of_two_is_no_reason_to_leave() -> None:
    """An engine of two places that runs one request is fuller by half, and takes the conversation that it knows all the same."""
    scheduler = make((Engine("a", 2), Engine("b", 2)))
    held(scheduler, "b", 1)
    placement(scheduler)._of(scheduler.pools["main"].places.engines["b"]).prefixes.note(Prefix(1), 5000, None)
    assert at(ask(scheduler, Prefix(2, 1), prompt=6000)) == "b"


def test_little_that_is_cached_does_not_outweigh_load() -> None:
    """A system prompt of a tenth of a usual prompt is not worth an eighth of the engine."""
    scheduler = make(TWO)
    end(scheduler, ask(scheduler))
    held(scheduler, "b", 1)
    placement(scheduler)._of(scheduler.pools["main"].places.engines["b"]).prefixes.note(Prefix(1, 0, 7, 100), 100, None)
    assert at(ask(scheduler, Prefix(2, 0, 7, 100))) == "a"


def test_prompts_that_wait_for_their_prefill_count() -> None:
    """Of two engines with as many requests the one with less to prefill takes the next."""
    scheduler = make(TWO)
    assert [at(ask(scheduler, prompt=tokens)) for tokens in (5000, 100, 100)] == ["a", "b", "b"]


def test_an_engine_that_went_out_has_forgotten() -> None:
    """After a restart its cache is empty, so the conversation goes to the first."""
    scheduler = make(TWO)
    blocker = ask(scheduler)
    end(scheduler, ask(scheduler, Prefix(1)))
    end(scheduler, blocker)
    scheduler.engine_report("main", "b", up=False)
    scheduler.engine_report("main", "b", up=True)
    assert at(ask(scheduler, Prefix(2, 1))) == "a"
    assert not placement(scheduler).shown("b").get("prefixes")


def test_an_engine_that_is_dropped_leaves_nothing_behind() -> None:
    """Names of engines come and go, and what was learned of them goes with them."""
    scheduler = make(TWO)
    first, second = ask(scheduler, Prefix(1)), ask(scheduler, Prefix(2))
    scheduler.reconfigure("main", FOUR, TWO[:1])
    end(scheduler, first)
    end(scheduler, second)
    assert set(placement(scheduler).known) == {"a"}


def test_an_engine_without_a_cache_soon_weighs_nothing_and_one_that_gets_one_counts_again() -> None:
    """Told 0 cached tokens again and again, its conversations are placed by load alone; told all of them, they return."""
    scheduler = make(TWO)
    place, b = placement(scheduler), scheduler.pools["main"].places.engines["b"]
    known = place._of(b)
    end(scheduler, ask(scheduler))
    r = request(TENANT, 0)
    r.engine, r.cached_tokens = b, 500
    for _ in range(60):
        place.told(r, 0)
    known.prefixes.note(Prefix(1), 5000, None)
    held(scheduler, "b", 1)
    r2 = ask(scheduler, Prefix(2, 1), prompt=6000)
    assert at(r2) == "a"
    end(scheduler, r2)
    known.prefixes.note(Prefix(3), 5000, None)
    for _ in range(60):
        place.told(r, 700)
    assert known.trust <= 1.0
    assert at(ask(scheduler, Prefix(4, 3), prompt=6000)) == "b"


def test_of_a_fast_and_a_slow_engine_the_fast_one_gets_the_longer_part() -> None:
    """Of eight prompts at once, the engine that prefills four times as fast gets more, and a long one alone goes there."""
    scheduler = make(TWO)
    place = placement(scheduler)
    now, counts = 0.0, Counter[str]()
    for _ in range(100):
        together = [ask(scheduler, prompt=1000, now=now) for _ in range(8)]
        counts = Counter(map(at, together))
        for name, seconds in (("a", 0.8), ("b", 0.2)):
            for place_in_line, r in enumerate((r for r in together if at(r) == name), 1):
                scheduler.progress(r, 1, now + place_in_line * seconds)
        for r in together:
            end(scheduler, r, now + 9.0)
        now += 10.0
    assert place.shown("a")["pace"] / place.shown("b")["pace"] == pytest.approx(4.0, rel=0.15)
    assert counts["b"] > counts["a"] > 0
    assert at(ask(scheduler, prompt=4000, now=now)) == "b"


def test_a_request_is_late_only_where_the_fastest_engine_is() -> None:
    """What one engine cannot begin in time another may; where none can, it is shed."""
    slo = (PriorityClass("fast", 0, max_wait_s=100.0, ttft_slo_s=1.0),)
    place = Soonest()
    engines = [EngineState(Engine(name, 8), plugins.engine_limit(Engine(name, 8))) for name in "ab"]
    for _ in range(SAMPLES_MIN):
        place.ttft.observe(1000, 2.0)
    r = request(TENANT, 0, prompt=1000)
    r.due = slo[0].ttft_slo_s
    assert place.is_late(r, engines, 0.0)
    for _ in range(SAMPLES_MIN):
        place._of(engines[1]).ttft.observe(1000, 0.5)
    assert not place.is_late(r, engines, 0.0)
    assert place.is_late(r, engines[:1], 0.0)
    assert not place.is_late(r, [], 0.0)


def test_what_is_cached_needs_no_time() -> None:
    """The same prompt is late on an engine that has nothing of it and in time on one that has most."""
    place = Soonest()
    engine = EngineState(Engine("a", 8), plugins.engine_limit(Engine("a", 8)))
    for tokens in range(100, 4100, 100):
        place.ttft.observe(tokens, tokens / 1000)
    r = request(TENANT, 0, prompt=3000)
    r.due, r.prefix = 1.0, Prefix(2, 1)
    assert place.is_late(r, [engine], 0.0)
    place._of(engine).prefixes.note(Prefix(1), 2500, None)
    assert not place.is_late(r, [engine], 0.0)


@given(
    running=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 16)), min_size=2, max_size=6),
    known=st.lists(st.integers(0, 9000), min_size=6, max_size=6),
    paces=st.lists(st.floats(0.1, 10.0), min_size=6, max_size=6),
    prompt=st.integers(1, 10_000),
)
def test_no_choice_is_fuller_than_the_least_loaded_by_more_than_the_slack(
    running: list[tuple[int, int]], known: list[int], paces: list[float], prompt: int
) -> None:
    """Whatever is expected where and however fast engines are."""
    place = Soonest()
    for _ in range(SAMPLES_MIN):
        place.ttft.observe(1000, 1.0)
    engines = []
    for number, (count, slots) in enumerate(running):
        spec = Engine(f"e{number}", max(slots, count + 1))
        engine = EngineState(spec, plugins.engine_limit(spec))
        for _ in range(count):
            engine.limit.take(request(TENANT, 0, prompt=10))
        state = place._of(engine)
        for _ in range(SAMPLES_MIN):
            state.ttft.observe(1000, paces[number])
        state.usual_s = paces[number]
        if known[number]:
            state.prefixes.note(Prefix(1), known[number], None)
        engines.append(engine)
    r = request(TENANT, 0, prompt=prompt)
    r.prefix = Prefix(2, 1)
    chosen = place.choose(r, engines)
    least = min(e.limit.load() for e in engines)
    assert chosen.limit.load() - least <= max(SLACK, 1 / chosen.limit.slots) + 1e-6


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4), st.integers(1, 3000), st.booleans()), max_size=80), st.booleans())
def test_requests_run_only_where_there_is_room(asked: list[tuple[int, int, int, bool]], hold: bool) -> None:
    """Whatever conversations come and end: no engine runs more than it may, a request waits only while none has room, and an engine
    that is held for one class is kept from the others."""
    scheduler = make((Engine("a", 2), Engine("b", 3)))
    places = scheduler.pools["main"].places
    running: list[Request] = []
    waiting: list[Request] = []
    if hold:
        places.engines["b"].limit.take(first := request(TENANT, 3, output=1))
        places.engines["b"].limit.reserve(request(TENANT, 3, prompt=10))
        assert first.held_tokens
    for whole, before, prompt, ends in asked:
        r = ask(scheduler, Prefix(whole, before, 9, 20), prompt=prompt)
        waiting.append(r)
        if ends and running:
            end(scheduler, running.pop(0))
        running += [w for w in waiting if w.state == "running"]
        waiting = [w for w in waiting if w.state == "waiting"]
        assert all(e.limit.running <= e.limit.slots for e in places.engines.values())
        if hold:
            assert all(at(w) == "a" for w in running)
        elif waiting:
            assert places.full
