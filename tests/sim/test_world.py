"""Whole runs in virtual time: the same again, nothing lost, and clients that behave as they were told."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest

from fairlane import plugins
from fairlane.core.scheduler import Scheduler
from fairlane.sim.attempts import Attempt, End, Record
from fairlane.sim.engine.model import EngineModel
from fairlane.sim.figures.measures import Measure
from fairlane.sim.forecast import Forecast
from fairlane.sim.load.clients import Clients, Retry
from fairlane.sim.load.workload import REFERENCE, Mix, Phase, TenantLoad
from fairlane.sim.runs import figures
from fairlane.sim.scenarios import scenario
from fairlane.sim.setup import NO_GATEWAY, Setup
from fairlane.sim.world import World, run

SHORT = Setup("gmp", load=1.5, warmup_s=5.0, duration_s=20.0)


def trail(record: Record) -> list[tuple[object, ...]]:
    """Everything that a run did to its requests."""
    return [(a.call, a.tries, a.at, a.started_at, a.first_token_at, a.ended_at, a.end, a.reason, a.produced) for a in record.attempts]


@pytest.mark.parametrize("policy", [*plugins.POLICIES, NO_GATEWAY])
def test_a_run_is_a_function_of_its_setup(policy: str) -> None:
    """Twice the same setup gives twice the same run, to the last bit; another seed gives another."""
    setup = replace(SHORT, policy=policy, duration_s=10.0)
    assert trail(run(setup)) == trail(run(setup)) != trail(run(replace(setup, seed=2)))


@pytest.mark.parametrize("policy", ["gmp", "strict", NO_GATEWAY])
@pytest.mark.parametrize(("limiter", "shed"), [(True, True), (False, False)])
def test_every_attempt_has_one_consistent_story(policy: str, limiter: bool, shed: bool) -> None:
    """What ended has its times in order and as many tokens as its end says, and is no longer anywhere in the world."""
    world = World(replace(SHORT, policy=policy, limiter=limiter, shed=shed, clients=Clients(disconnect_ratio=0.2)))
    world.play(lambda _: None)
    for a in world.record.attempts:
        times = [t for t in (a.at, a.started_at, a.first_token_at, a.ended_at) if t is not None]
        assert times == sorted(times)
        assert (a.end is End.OPEN) == (a.ended_at is None)
        assert a.end is not End.COMPLETED or a.produced == a.arrival.output_tokens
        assert a.end is not End.SHED or (a.started_at is None and a.reason is not None and shed)
        assert a.end is not End.ABANDONED or a.first_token_at is None
        assert a.end is not End.DISCONNECTED or a.produced == a.hangs_up_after
    waiting = sum(a.started_at is None for a in world.record.attempts if a.end is End.OPEN)
    assert sum(b.waiting for b in world.record.backlogs) == waiting
    if isinstance(world.scheduler, Scheduler):
        assert world.scheduler.queued == waiting


def test_the_cap_bounds_what_runs() -> None:
    """Without our limiter at most 64 requests are at the engine, whatever waits."""
    record = run(replace(SHORT, policy="fifo", load=8.0, limiter=False, shed=False))
    moments = [(a.started_at, 1) for a in record.attempts if a.started_at is not None]
    moments += [(a.ended_at, -1) for a in record.attempts if a.started_at is not None and a.ended_at is not None]
    running = most = 0
    for _, change in sorted(moments):
        running += change
        most = max(most, running)
    assert most == 64


def test_patience_ends_when_it_should() -> None:
    """An attempt that is given up ends after exactly its class's patience, and no other waits longer for its first token."""
    record = run(replace(SHORT, policy="fifo", load=4.0, limiter=False, shed=False))
    patience = Clients().patience_s
    given_up = [a for a in record.attempts if a.end is End.ABANDONED]
    assert given_up
    for a in given_up:
        assert a.ended_at == a.at + (patience[a.arrival.rank] or 0.0)
    for a in record.attempts:
        assert a.ttft_s is None or a.ttft_s <= (patience[a.arrival.rank] or 1e9)


def tries(record: Record) -> dict[int, list[Attempt]]:
    """All tries of each request."""
    by_call = defaultdict(list)
    for a in record.attempts:
        by_call[a.call].append(a)
    return by_call


def test_refused_clients_come_back_when_told() -> None:
    """Clients that obey return exactly after the time that they were told, at most as often as they try, and none after a success."""
    setup = replace(SHORT, load=4.0, duration_s=60.0, clients=Clients(retry=Retry.OBEY, tries_max=3))
    by_call = tries(run(setup))
    assert max(map(len, by_call.values())) == 3
    for attempts in by_call.values():
        for before, after in pairwise(attempts):
            assert before.end in (End.SHED, End.ABANDONED)
            if before.end is End.SHED and before.retry_after_s is not None:
                assert after.at == pytest.approx((before.ended_at or 0.0) + before.retry_after_s)


def test_several_engines_share_the_load() -> None:
    """Two engines serve about twice as much as one, and both take part."""
    one, two = (run(replace(SHORT, load=2.5, engines=n, duration_s=40.0)) for n in (1, 2))
    done = [sum(a.cost for a in r.attempts if a.end is End.COMPLETED) for r in (one, two)]
    assert done[1] > 1.5 * done[0]
    places = Counter(a.engine for a in two.attempts if a.started_at is not None)
    assert min(places[0], places[1]) > 0.3 * sum(places.values())


def test_a_brown_out_slows_what_runs() -> None:
    """While engines are slow first tokens take long; afterwards they are quick again."""
    slow = Phase(20.0, 40.0, 10.0)
    mix = Mix("x", (TenantLoad("x", 0, 1.0, 1.0, "azure2023_conv"),))
    record = run(Setup("gmp", source=mix, brownouts=(slow,), shed=False, warmup_s=10.0, duration_s=90.0))
    times: dict[bool, list[float]] = {True: [], False: []}
    for a in record.attempts:
        if a.ttft_s is not None and (a.at < 20.0 or a.at > 70.0 or 20.0 < a.at < 38.0):
            times[20.0 < a.at < 38.0].append(a.ttft_s)
    assert min(times[True]) > max(times[False]) / 2
    assert sum(times[True]) / len(times[True]) > 5 * sum(times[False]) / len(times[False])


def test_what_no_engine_can_hold_fails_at_once() -> None:
    """A request larger than the KV cache fails at the engine and hurts nobody else."""
    model = EngineModel(kv_tokens=6000)
    record = run(replace(SHORT, load=0.2, model=model, duration_s=60.0))
    ends = Counter(a.end for a in record.attempts if a.arrival.prompt_tokens + a.arrival.output_tokens - 1 > 6000)
    assert ends[End.FAILED]
    assert not ends[End.COMPLETED] + ends[End.ABANDONED]
    assert any(a.end is End.COMPLETED for a in record.attempts)


def test_the_oracle_keeps_some_of_what_is_shed() -> None:
    """About the wanted part of the sheds is undone; what is kept is never shed, and reaches an engine or loses patience."""
    setup = replace(SHORT, load=3.0, duration_s=60.0, kept_ratio=0.3)
    attempts = run(setup).attempts
    kept = [a for a in attempts if a.kept_at is not None]
    shed = [a for a in attempts if a.end is End.SHED and a.arrival.rank < 3]
    assert len(kept) / (len(kept) + len(shed)) == pytest.approx(0.3, abs=0.08)
    assert {a.end for a in kept} <= {End.COMPLETED, End.ABANDONED, End.OPEN}
    assert End.COMPLETED in {a.end for a in kept}


@pytest.mark.parametrize("forecast", list(Forecast))
def test_predictions_come_from_where_they_should(forecast: Forecast) -> None:
    """An oracle knows each length, a blind forecast none, and a learning one becomes better than blind."""
    setup = replace(SHORT, load=0.5, duration_s=200.0, forecast=forecast, source=Mix("x", REFERENCE.tenants[:3]))
    attempts = run(setup).attempts
    errors = [abs(a.prediction.mean - a.arrival.output_tokens) for a in attempts if a.at > 100.0]
    blind = [abs(256 - a.arrival.output_tokens) for a in attempts if a.at > 100.0]
    assert sum(errors) == {Forecast.ORACLE: 0, Forecast.BLIND: sum(blind)}.get(forecast, sum(errors))
    assert forecast is not Forecast.LEARNED or 0 < sum(errors) < 0.8 * sum(blind)


def test_predictions_can_be_spoilt() -> None:
    """Predictions are off by up to the wanted factor, both ways."""
    setup = replace(SHORT, load=0.5, forecast=Forecast.ORACLE, forecast_error=4.0)
    factors = [a.prediction.mean / a.arrival.output_tokens for a in run(setup).attempts if a.arrival.output_tokens > 50]
    assert 0.24 < min(factors) < 0.5
    assert 2.0 < max(factors) < 4.1


def test_the_controller_finds_what_an_engine_can_run() -> None:
    """It begins at 16 and is near the best fixed number within minutes, also after prompts have become long; it then preempts little."""
    setup = scenario("shift", Setup("gmp", load=1.5, kv_known=False))
    found, fixed = (figures(s) for s in (replace(setup, adaptive=True), replace(setup, slots=16)))
    assert found.goodput > 0.9 * fixed.goodput
    assert found.preemptions < 50
    assert figures(replace(setup, slots=64)).goodput < 0.6 * fixed.goodput


def test_an_engine_that_comes_and_goes_leaves_things_as_if_they_had_always_been_so() -> None:
    """A minute after each, shares and attainment of all classes are within 5 points of a run that began with these engines."""
    setup = scenario("join", Setup("gmp", seed=6, load=2.0))
    assert setup.last_there is not None
    record = run(setup)
    for began, engines in zip(setup.last_there, (2, 1), strict=True):
        joined = replace(setup, warmup_s=began + 60.0, duration_s=120.0)
        always = replace(joined, engines=engines, last_there=None)
        found, wanted = Measure(joined, record).figures(None), Measure(always, run(always)).figures(None)
        assert found.share == pytest.approx(wanted.share, abs=0.05)
        assert found.attainment == pytest.approx(wanted.attainment, abs=0.05)


def test_an_engine_that_finds_its_limit_may_come_and_go() -> None:
    """Its controller waits for it, and nothing is sent to it while it is away."""
    setup = replace(SHORT, load=3.0, adaptive=True, engines=2, last_there=(8.0, 16.0))
    record = run(setup)
    assert {a.engine for a in record.attempts if a.started_at is not None and not 8.0 <= a.started_at < 16.0} == {0}
    assert {a.engine for a in record.attempts if a.started_at is not None} == {0, 1}
