"""Runs one seed of the swarm, or many: `python -m tests.swarm --seed 7` or `--seeds 0:1000`."""

from __future__ import annotations

import argparse
import sys

import tests.conftest  # noqa: F401 - the source of this folder, not what is installed
from tests.swarm.checks import Broken
from tests.swarm.run import STEPS, swarm

CLEAR = "\r\033[K"  # the line of the progress bar
WIDTH = 40  # columns of the progress bar


def seeds(text: str) -> range:
    """`A:B`: from A to just before B."""
    first, _, end = text.partition(":")
    return range(int(first), int(end))


def main() -> int:
    """Prints the command for each seed that fails; returns 1 if any does."""
    parser = argparse.ArgumentParser(prog="python -m tests.swarm", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="one seed")
    which.add_argument("--seeds", type=seeds, metavar="A:B", help="all from A to just before B")
    parser.add_argument("--steps", type=int, default=STEPS, help="random events in each run (%(default)s)")
    options = parser.parse_args()
    chosen = options.seeds if options.seed is None else [options.seed]
    failed = 0
    for done, seed in enumerate(chosen, 1):
        try:
            swarm(seed, options.steps)
        except Broken as broken:
            failed += 1
            sys.stdout.write(f"{CLEAR * sys.stderr.isatty()}{broken}\n")
            sys.stdout.flush()
        if sys.stderr.isatty():
            bar = "█" * (WIDTH * done // len(chosen))
            sys.stderr.write(f"\r{bar:<{WIDTH}} {done}/{len(chosen)}, {failed} failed")
            sys.stderr.flush()
    sys.stdout.write(f"{CLEAR * sys.stderr.isatty()}{len(chosen)} seeds of {options.steps} steps, {failed} failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
