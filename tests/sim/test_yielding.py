"""Yielding in whole runs: urgent requests start sooner where batch holds the places, at the waste that is allowed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from fairlane.policies.yielding import BURST_TOKENS, TIMES_MAX
from fairlane.sim.attempts import OUTPUT_WEIGHT, End
from fairlane.sim.engine.batching import SimulatedEngine
from fairlane.sim.engine.jobs import Job
from fairlane.sim.engine.model import EngineModel
from fairlane.sim.runs import figures
from fairlane.sim.scenarios import scenario
from fairlane.sim.setup import Setup
from fairlane.sim.world import World

NIGHTLY = replace(scenario("nightly", Setup("gmp", headroom=False)), warmup_s=30.0, duration_s=240.0)


def test_urgent_requests_start_sooner_and_little_is_lost() -> None:
    """Half of them within two thirds of the time, where a twentieth of the tokens may be wasted; batch completes as much."""
    with_it, without = (figures(replace(NIGHTLY, yield_waste=part)) for part in (0.05, 0.0))
    sooner, later = with_it.ttft_s[0]["p50"], without.ttft_s[0]["p50"]
    assert sooner is not None
    assert later is not None
    assert sooner < 0.67 * later
    assert with_it.goodput > 0.95 * without.goodput
    assert (without.yields, without.wasted_ratio < 0.01) == (0, True)
    assert with_it.yields > 20
    assert with_it.wasted_ratio < 0.08


@pytest.mark.parametrize("policy", ["gmp", "strict"])
def test_what_gave_way_is_answered_in_full_and_charged_once(policy: str) -> None:
    """Its waste is within the allowance, and what the scheduler has charged in the end is what answers have cost."""
    world = World(replace(NIGHTLY, policy=policy, yield_waste=0.05))
    world.play(lambda _: None)
    gave = [a for a in world.record.attempts if a.yields]
    done = [a for a in gave if a.end is End.COMPLETED]
    assert len(done) > 10
    assert max(a.yields for a in gave) <= TIMES_MAX
    assert {a.arrival.rank for a in gave} == {3}
    for a in done:
        assert (a.produced, a.prefilled) == (a.arrival.output_tokens, a.arrival.prompt_tokens)
        assert a.request.cost == a.arrival.prompt_tokens + OUTPUT_WEIGHT * a.arrival.output_tokens
    served = sum(a.arrival.prompt_tokens + a.arrival.output_tokens for a in world.record.attempts if a.end is End.COMPLETED)
    assert sum(a.vain for a in gave) <= OUTPUT_WEIGHT * (0.05 * served + BURST_TOKENS)
    assert sum(engine.preemptions for engine in world.engines) == 0


def test_what_was_made_by_now_is_known_to_the_step() -> None:
    """Between two reports, too; the step under way counts as done."""
    engine = SimulatedEngine(EngineModel())
    job = Job(1, 100, 50)
    engine.add(job, 0.0)
    found = []
    for tick in range(400):
        now = tick / 500
        engine.advance(now)
        found.append(engine.produced_by(job, now))
    decoding = [tokens for tokens in found if tokens]
    assert {after - before for before, after in pairwise(decoding)} == {0, 1}
    assert found[-1] == 50
