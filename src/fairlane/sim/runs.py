"""Many runs: policies side by side on the same arrivals, several seeds, in one process or more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures import as_completed as completed
from dataclasses import replace
from functools import partial
from multiprocessing import get_context

from fairlane.sim.figures.measures import Figures, Measure
from fairlane.sim.setup import TTFT_SLO_S, Setup
from fairlane.sim.world import run

KEPT_RATIO = 0.05  # of sheds that the oracle run undoes


def figures(setup: Setup, on_part: Callable[[float], None] = lambda _: None) -> Figures:
    """One run, and its oracle run if something with an objective was shed. `on_part` hears which part of it is done."""
    record = run(setup, lambda now: on_part(0.5 * now / setup.until_s))
    oracle = None
    if any(a.reason and TTFT_SLO_S[a.arrival.rank] for a in record.attempts):
        oracle = run(replace(setup, kept_ratio=KEPT_RATIO), lambda now: on_part(0.5 + 0.5 * now / setup.until_s))
    return Measure(setup, record).figures(oracle)


def compare(setups: Sequence[Setup], jobs: int, on_part: Callable[[float], None]) -> list[Figures]:
    """The figures of each setup, in their order."""
    if jobs <= 1:
        return [figures(setup, partial(_on_part_of, on_part, done, len(setups))) for done, setup in enumerate(setups)]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:  # forking is unsafe where threads run
        futures = [pool.submit(figures, setup) for setup in setups]
        for done, _ in enumerate(completed(futures), 1):
            on_part(done / len(futures))
        return [future.result() for future in futures]


def _on_part_of(on_part: Callable[[float], None], done: int, whole: int, part: float) -> None:
    on_part((done + part) / whole)
