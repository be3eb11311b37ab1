"""`fairlane simulate`: policies side by side on the same load, in virtual time, on the scheduler that the gateway runs.

Without `--trace` or `--scenario` the load is the reference workload: eleven tenants in four classes with real lengths.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from fairlane import plugins
from fairlane.errors import SettingsError
from fairlane.sim.figures.plot import svg
from fairlane.sim.figures.report import row, text
from fairlane.sim.load.clients import Clients, Retry
from fairlane.sim.load.workload import CLASSES
from fairlane.sim.runs import compare
from fairlane.sim.scenarios import SCENARIOS, scenario, surged, traced
from fairlane.sim.setup import NO_GATEWAY, Setup

BAR = 40
AUTO = 0  # slots that the controller finds


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:  # the only name argparse has for it
    """Adds the command."""
    parser = subparsers.add_parser("simulate", help="compare policies in virtual time", description=__doc__)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--trace", metavar="NAME|FILE", help="recorded requests, or a table of lengths that ships")
    source.add_argument("--scenario", choices=SCENARIOS, default="reference", help="the load (default: %(default)s)")
    known = ", ".join([*plugins.POLICIES, NO_GATEWAY])
    parser.add_argument("--policy", metavar="A,B", default="gmp", help=f"one or more of {known} (default: %(default)s)")
    parser.add_argument("--load", type=_positive, default=1.0, metavar="X", help="times the nominal rate (default: %(default)s)")
    parser.add_argument("--surge", type=_surge, action="append", default=[], metavar="CLASS=X", help="times the rate of one class")
    parser.add_argument("--no-limiter", action="store_true", help="a plain cap of 64 requests instead of our limiter")
    parser.add_argument("--slots", type=_slots, metavar="N|auto", help="requests each engine runs at once (default: as many as it can)")
    parser.add_argument("--kv-unknown", action="store_true", help="engines do not tell the size of their KV cache")
    parser.add_argument("--fast-lane", action="store_true", help="keep a part of each engine for short requests")
    parser.add_argument("--no-headroom", action="store_true", help="gmp keeps no room for urgent requests that are still to come")
    parser.add_argument(
        "--yield-waste", type=float, default=0.0, metavar="PART", help="batch gives its places away at so much waste of tokens"
    )
    parser.add_argument("--no-shed", action="store_true", help="no deadlines: only the number of waiting requests is bounded")
    parser.add_argument("--retry", type=Retry, choices=list(Retry), help="how refused clients come back (default: none)")
    parser.add_argument("--disconnect", type=float, default=0.0, metavar="RATIO", help="part of clients that leave in mid-answer")
    parser.add_argument("--engines", type=int, default=1, metavar="N", help="engines in the pool (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs of each policy (default: %(default)s)")
    parser.add_argument("--duration", type=_positive, metavar="S", help="scored seconds after a minute of warming up")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print a list of one row a policy")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the result into an SVG file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the comparison."""
    policies = args.policy.split(",")
    _check(policies, args)
    base = _setup(args)
    setups = [replace(base, policy=policy, seed=seed) for policy in policies for seed in range(1, args.seeds + 1)]
    found = compare(setups, args.jobs, _progress if sys.stderr.isatty() else lambda _: None)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    results = [(policy, found[i * args.seeds : (i + 1) * args.seeds]) for i, policy in enumerate(policies)]
    rows = [row(policy, runs) for policy, runs in results]
    print(json.dumps(rows, indent=1) if args.json else text(results), end="\n" if args.json else "")
    if args.plot:
        args.plot.write_text(svg(rows), encoding="utf-8")
    return 0


def _setup(args: argparse.Namespace) -> Setup:
    clients = Clients(disconnect_ratio=args.disconnect)
    setup = Setup(
        "",
        load=args.load,
        limiter=not args.no_limiter,
        slots=args.slots or None,
        adaptive=args.slots == AUTO,
        kv_known=not args.kv_unknown,
        shed=not args.no_shed,
        headroom=not args.no_headroom,
        yield_waste=args.yield_waste,
        fast_lane=args.fast_lane,
        engines=args.engines,
        clients=clients,
    )
    setup = traced(args.trace, setup) if args.trace else scenario(args.scenario, setup)
    if args.retry is not None:
        setup = replace(setup, clients=replace(setup.clients, retry=args.retry))
    if args.duration is not None:
        setup = replace(setup, duration_s=args.duration)
    return surged(setup, dict(args.surge))


def _check(policies: list[str], args: argparse.Namespace) -> None:
    """Bad wishes are told all at once, before anything runs."""
    known = [*plugins.POLICIES, NO_GATEWAY]
    problems = [f"unknown policy {name!r}; known: {', '.join(known)}" for name in policies if name not in known]
    problems += [f"--{name} must be at least 1" for name in ("seeds", "jobs", "engines") if getattr(args, name) < 1]
    if not 0 <= args.disconnect <= 1:
        problems.append("--disconnect must be between 0 and 1")
    if not 0 <= args.yield_waste <= 0.5:
        problems.append("--yield-waste must be between 0 and 0.5")
    if args.yield_waste and not {"gmp", "strict", NO_GATEWAY}.issuperset(policies):
        problems.append("--yield-waste is only for the policies gmp and strict")
    if problems:
        raise SettingsError(problems)


def _positive(value: str) -> float:
    number = float(value)
    if not 0 < number < float("inf"):
        raise ValueError
    return number


def _slots(value: str) -> int:
    """A number, or AUTO."""
    slots = AUTO if value == "auto" else int(value)
    if slots < AUTO or (slots == AUTO and value != "auto"):
        raise ValueError
    return slots


def _surge(value: str) -> tuple[str, float]:
    name, _, factor = value.partition("=")
    if name not in CLASSES:
        raise argparse.ArgumentTypeError(f"{name!r} is no class; classes: {', '.join(CLASSES)}")
    return name, _positive(factor)


def _progress(part: float) -> None:
    done = int(part * BAR)
    print(f"\r[{'#' * done}{'.' * (BAR - done)}] {part:4.0%}", end="", file=sys.stderr, flush=True)
