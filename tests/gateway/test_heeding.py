"""Whether an engine heeds the stamp is learned from the order of first tokens, and from nothing else."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from fairlane.core.request import Request
from fairlane.core.values import Tenant
from fairlane.gateway.control.heeding import VERDICTS_MIN, Heeding
from tests.core.world import request
from tests.gateway.test_interleavings import STREAMED, World, rounds
from tests.gateway.test_yielding import batch, told, urgent

STEP_S = 5.0
ONE = Tenant("one")


class Engine:
    """An engine of a few places that takes what waits in one order or another; each answer takes seconds, each prompt time of its own."""

    def __init__(self, *, heeds: bool, places: int = 4, stamped: bool = True, step_s: float = 0.02) -> None:
        self.told: list[str] = []
        self.heeding = Heeding(STEP_S, self.told.append, stamped=stamped)
        self._heeds = heeds
        self._step_s = step_s
        self._free_at = [0.0] * places

    def run(self, sent: list[tuple[float, Request]], *, answer_s: float = 2.0, prefill_s: float = 1e-4) -> None:
        """Serves all of these, sent at these times in this order."""
        waiting, firsts = list(sent), list[tuple[float, float, Request]]()
        while waiting:
            place = min(range(len(self._free_at)), key=self._free_at.__getitem__)
            now = max(self._free_at[place], waiting[0][0])
            there = [one for one in waiting if one[0] <= now]
            at, chosen = min(there, key=self._turn if self._heeds else lambda one: one[0])
            waiting.remove((at, chosen))
            first = now + prefill_s * chosen.prompt_tokens
            firsts.append((first - first % self._step_s + self._step_s, at, chosen))
            self._free_at[place] = first + answer_s
        for first, at, chosen in sorted(firsts, key=lambda one: one[:2]):
            self.heeding.first_token(chosen, at, first)

    @staticmethod
    def _turn(one: tuple[float, Request]) -> float:
        at, chosen = one
        return at + chosen.rank * STEP_S


def of(rank: int, prompt: int = 100) -> Request:
    """A request that its class was not owed."""
    one = request(ONE, rank, prompt=prompt)
    one.owed = False
    return one


def crowd(
    random: Random, count: int, *, rate: float, ranks: tuple[int, ...] = (0, 3), prompts: tuple[int, ...] = (50, 400)
) -> list[tuple[float, Request]]:
    """So many requests at random times."""
    now, sent = 0.0, []
    for _ in range(count):
        now += random.expovariate(rate)
        sent.append((now, of(random.choice(ranks), random.choice(prompts))))
    return sent


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("heeds", "found"), [(True, "yes"), (False, "no")])
def test_it_is_found_from_streams_that_waited_inside(heeds: bool, found: str, seed: int) -> None:
    """At an engine that has more than it can run; told once."""
    engine = Engine(heeds=heeds)
    engine.run(crowd(Random(seed), 120, rate=2.5))
    assert (engine.heeding.heeds, engine.told) == (found, [found])


@pytest.mark.parametrize("heeds", [True, False])
@pytest.mark.parametrize(
    ("ranks", "rate", "prompts"),
    [((2,), 3.0, (50, 400)), ((0, 3), 0.8, (50, 400)), ((0, 3), 2.5, (50_000,))],
    ids=["one rank", "nothing waits", "long prompts"],
)
def test_where_order_does_not_show_nothing_is_concluded(heeds: bool, ranks: tuple[int, ...], rate: float, prompts: tuple[int, ...]) -> None:
    """All of one rank, no queue inside, and prompts that are prefilled for longer than anything waits."""
    engine = Engine(heeds=heeds)
    engine.run(crowd(Random(1), 200, rate=rate, ranks=ranks, prompts=prompts))
    assert (engine.heeding.heeds, engine.told) == ("unknown", [])


def test_a_long_prompt_among_short_ones_is_no_overtaking() -> None:
    """Its first token comes late because it is long, at an engine that takes all in their order."""
    engine = Engine(heeds=False, places=64)
    engine.run(crowd(Random(2), 300, rate=8.0, prompts=(50, 30_000)))
    assert engine.heeding.heeds == "unknown"


def test_tokens_of_one_step_have_no_order() -> None:
    """All that waits is taken into one batch, and its tokens are told in any order."""
    engine = Engine(heeds=False)
    for number in range(2 * VERDICTS_MIN):
        late, urgent = of(3), of(0)
        engine.heeding.first_token(urgent, number * 10.0 + 2.0, number * 10.0 + 4.0)
        engine.heeding.first_token(late, number * 10.0, number * 10.0 + 4.001)
    assert engine.heeding.heeds == "unknown"


def test_an_engine_that_was_away_is_learned_anew() -> None:
    """It may have been started in another way."""
    engine = Engine(heeds=True)
    engine.run(crowd(Random(3), 120, rate=2.5))
    engine.heeding.restarted()
    assert engine.told == ["yes", "unknown"]
    engine._heeds = False
    engine.run([(at + 1000.0, one) for at, one in crowd(Random(4), 120, rate=2.5)])
    assert engine.told == ["yes", "unknown", "no"]


def test_a_class_that_is_owed_counts_as_urgent() -> None:
    """Its stamp is the time alone, so nothing urgent is to pass it."""
    engine = Engine(heeds=True)
    for number in range(2 * VERDICTS_MIN):
        owed, urgent = of(3), of(0)
        owed.owed = True
        engine.heeding.first_token(owed, number * 10.0, number * 10.0 + 4.0)
        engine.heeding.first_token(urgent, number * 10.0 + 1.5, number * 10.0 + 6.0)
    assert engine.heeding.heeds == "unknown"


def test_an_engine_without_the_field_heeds_nothing() -> None:
    """And nothing is learned of it."""
    engine = Engine(heeds=True, stamped=False)
    engine.run(crowd(Random(5), 120, rate=2.5))
    assert (engine.heeding.heeds, engine.told) == ("no", [])


def test_first_tokens_of_streams_are_told_with_the_time_that_they_were_sent(tmp_path: Path) -> None:
    """The gateway tells of each, and of no answer that comes as a whole."""

    async def story(world: World) -> None:
        for come in (batch, urgent):
            come(world, stream=True)
            await rounds(4)
            for step in STREAMED:
                step(world)
                await rounds(4)

    world, rows = told(story, tmp_path)
    first, second = world._link.heeding._started
    assert [row["class"] for row in rows] == ["batch", "urgent"]
    assert first.counts_as - first.sent_at == STEP_S > second.counts_as - second.sent_at == 0.0
    assert first.sent_at <= first.first_at <= second.sent_at <= second.first_at
