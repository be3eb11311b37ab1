"""What each part of the scheduler is worth: `python -m bench.ablation [--seeds N] [--jobs N]` writes `docs/ablation.md`'s text.

The reference workload on the simulator, with one part switched off at a time, at 1.5 times the nominal rate, and again with three
times the realtime requests.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from fairlane import __version__
from fairlane.sim.figures.report import row
from fairlane.sim.forecast import Forecast
from fairlane.sim.runs import compare
from fairlane.sim.scenarios import surged
from fairlane.sim.setup import Setup

LOAD = 1.5
WHOLE = Setup("gmp", load=LOAD, fast_lane=True)
PARTS = {
    "all": WHOLE,
    "no limiter (a cap of 64 requests)": replace(WHOLE, limiter=False),
    "no shed": replace(WHOLE, shed=False),
    "no fast lane": replace(WHOLE, fast_lane=False),
    "no short-first": replace(WHOLE, short_first=False),
    "no predictor (256 tokens for all)": replace(WHOLE, forecast=Forecast.BLIND),
    "no hold": replace(WHOLE, holds=False),
    "no headroom": replace(WHOLE, headroom=False),
    "a perfect predictor instead": replace(WHOLE, forecast=Forecast.ORACLE),
}
HEAD = "| Without | Goodput | Attainment realtime, paid, free | Batch p5 share | Wasted | Preemptions | TTFT p95 realtime, s |"
BAR = 40


def main() -> int:
    """Prints the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.ablation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs of each row (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: %(default)s)")
    args = parser.parse_args()
    loads = {"Load 1.5": {}, "Load 1.5, three times the realtime requests": {"realtime": 3.0}}
    setups = [
        replace(surged(part, factors), seed=seed)
        for factors in loads.values()
        for part in PARTS.values()
        for seed in range(1, args.seeds + 1)
    ]
    found = iter(compare(setups, args.jobs, _progress if sys.stderr.isatty() else lambda _: None))
    print(f"# What each part is worth\n\n{_about(args.seeds)}")
    for title in loads:
        print(f"\n## {title}\n\n{HEAD}\n|{'---|' * HEAD.count(' | ')}---|")
        for name in PARTS:
            print(_line(name, row(name, [next(found) for _ in range(args.seeds)])))
    return 0


def _about(seeds: int) -> str:
    return f"""\
Made by `make ablation` with Fairlane {__version__}: the reference workload of `fairlane simulate` with one part of the scheduler switched
off at a time; medians of {seeds} seeds. Goodput is served cost within its objective per second. The fast lane is on in all rows but its
own. A simulated engine is no real one: the order of the rows says more than the numbers."""


def _line(name: str, figures: dict[str, object]) -> str:
    of: dict[str, dict[str, float | None]] = figures  # type: ignore[assignment]
    attained = ", ".join(_number(of["attainment"][cls], 2) for cls in ("realtime", "paid", "free"))
    ttft: dict[str, dict[str, float | None]] = figures["ttft_s"]  # type: ignore[assignment]
    cells = (
        name,
        _number(figures["goodput"], 0),
        attained,
        _number(of["share_p5"]["batch"], 3),
        _number(figures["wasted_ratio"], 3),
        _number(figures["preemptions"], 0),
        _number(ttft["realtime"]["p95"], 2),
    )
    return f"| {' | '.join(cells)} |"


def _number(value: object, digits: int) -> str:
    return f"{value:.{digits}f}" if isinstance(value, int | float) else "-"


def _progress(part: float) -> None:
    done = int(part * BAR)
    print(f"\r[{'#' * done}{'.' * (BAR - done)}] {part:4.0%}", end="\n" if part >= 1 else "", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
