"""Parts a and b: realtime requests in a flood, with vLLM's own order and with Fairlane's."""

import argparse
import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Final, NamedTuple

from bench.vllm_order.figures import Figures, brief, costs, figures, table
from bench.vllm_order.load import REALTIME_TOKENS, Plan, Played, play
from bench.vllm_order.modes import MODES, PLACES, SHARES, plugin_classes, settings
from bench.vllm_order.servers import Engine, gateway, vllm
from bench.vllm_order.starts import LOGGED_S, Passed, logged, passed_over, recorded

PARTS: Final = frozenset("ab")
PART: Final = 0.2  # of the engine's capacity, that realtime requests take
LEFT_TO_BATCH: Final[dict[str, object]] = {"max_running": 6}  # of the engine's 8 places
FLOOD_S: Final = 20.0  # for which the flood alone is scored, at most

Pair = dict[str, Figures]
Part = Callable[["Bench", int], Pair]


class Found(NamedTuple):
    """All runs by part and mode, the page, and how many answers were wrong."""

    runs: dict[str, object]
    text: str
    wrong: float


@dataclass
class Bench:
    """One engine, and the runs on it."""

    options: argparse.Namespace
    progress: Callable[[str], None]
    name: str
    engine: Engine
    flood_per_s: list[float] = field(default_factory=list)
    runs: int = 0

    def plan(self, **changed: float) -> Plan:
        """A run of the usual length, with names that no other has."""
        self.runs += 1
        return replace(Plan(f"{self.name}{self.runs}", self.options.seconds, self.options.warm), **changed)  # type: ignore[arg-type]

    def flood(self) -> None:
        """The flood alone and straight: what the engine can do."""
        self.progress(f"{self.name}: the flood alone")
        plan = self.plan(seconds=min(FLOOD_S, self.options.seconds))
        self.flood_per_s.append(asyncio.run(play(plan, self.engine.port, self.engine)).scored_tokens / plan.seconds)

    def realtime(self, number: int) -> dict[str, float]:
        """The realtime requests of a pair of runs."""
        return {"rate": PART * self.flood_per_s[0] / REALTIME_TOKENS, "seed": number}

    def straight(self, doing: str, **changed: float) -> Figures:
        """A run without the gateway."""
        self.progress(f"{self.name}: {doing}")
        plan = self.plan(**changed)
        return self._figures(plan, asyncio.run(play(plan, self.engine.port, self.engine)), {})

    def through(self, doing: str, batch: dict[str, object], **changed: float) -> Figures:
        """A run through a gateway that has just started."""
        self.progress(f"{self.name}: {doing}")
        plan, mode = self.plan(**changed), MODES[self.name]
        told = settings(mode, self.engine.port, self.options.slots if mode.ahead else PLACES, batch)
        with tempfile.TemporaryDirectory() as scratch:
            with gateway(self.options.fairlane, told, Path(scratch)) as front:
                played = asyncio.run(play(plan, front.port, self.engine))
            starts = logged(front.log, costs(plan))
        return self._figures(plan, played, {"gateway": passed_over(starts, SHARES["batch"], LOGGED_S)})

    def _figures(self, plan: Plan, played: Played, passed: dict[str, Passed]) -> Figures:
        inside = recorded(self.engine.starts, plan.name, costs(plan))
        found = figures(plan, played, {**passed, "engine": passed_over(inside, SHARES["batch"])})
        self.progress(f"  {brief(found)}")
        return found


def run(options: argparse.Namespace, progress: Callable[[str], None]) -> Found:
    """Starts each mode's engine once, and takes the runs on it in turn."""
    runs: dict[str, object] = {}
    pages, wrong = [], 0.0
    for name in MODES:
        parts = wanted(options, name)
        if not parts:
            continue
        progress(f"{name}: vLLM starts")
        engine_options = ["--max-num-seqs", str(PLACES), *MODES[name].options]
        with vllm(options.vllm, engine_options, {"FAIRLANE_CLASSES": plugin_classes()}) as engine:
            bench = Bench(options, progress, name, engine)
            bench.flood()
            found = {letter: [part(bench, number) for number in range(1, options.pairs + 1)] for letter, part in parts.items()}
            bench.flood()
        for letter, pairs in found.items():
            runs[f"{letter} {name}"] = {"flood_per_s": bench.flood_per_s, "pairs": pairs}
            pages.append(page(letter, name, pairs, bench.flood_per_s))
            wrong += sum(arm["wrong"] for pair in pairs for arm in pair.values())
    return Found(runs, "\n".join(pages), wrong)


def without_room(bench: Bench, number: int) -> Pair:
    """a: no place is kept for realtime requests, so each waits until one comes free."""
    load = bench.realtime(number)
    return {
        "direct": bench.straight(f"a, pair {number}, direct", **load),
        "fairlane": bench.through(f"a, pair {number}, fairlane", {}, **load),
    }


def with_room(bench: Bench, number: int) -> Pair:
    """b: batch leaves places free; what it has begun and is stopped for a realtime request is computed for nothing."""
    load = bench.realtime(number)
    return {
        "alone": bench.straight(f"b, pair {number}, realtime alone", flood=0, **load),
        "fairlane": bench.through(f"b, pair {number}, fairlane", LEFT_TO_BATCH | dict(bench.options.batch), drain=True, **load),
    }


def wanted(options: argparse.Namespace, name: str) -> dict[str, Part]:
    """The parts that a mode takes part in."""
    modes = {"a": options.modes, "b": ["gateway"]}
    return {letter: part for letter, (part, _) in KINDS.items() if letter in options.only and name in modes[letter]}


def page(letter: str, name: str, pairs: list[Pair], flood_per_s: list[float]) -> str:
    """The figures of a part, once each run has its part of the flood's tokens."""
    part, over = KINDS[letter]
    for pair in pairs:
        for arm in pair.values():
            arm["of_flood"] = arm["output_per_s"] / mean(flood_per_s)
    flood = " and ".join(f"{value:.0f}" for value in flood_per_s)
    head = f"{part.__doc__}\n{name}, {len(pairs)} pairs; the flood straight to vLLM: {flood} output tokens/s before and after"
    return f"\n{head}\n{table(pairs, over, ('ttft_p50_s', 'ttft_p95_s', 'ttft_p99_s'))}"


KINDS: Final[dict[str, tuple[Part, tuple[str, str]]]] = {
    "a": (without_room, ("direct", "fairlane")),
    "b": (with_room, ("fairlane", "alone")),
}
