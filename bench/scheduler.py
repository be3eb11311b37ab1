"""What the scheduler's decisions cost: `python -m bench.scheduler [--rounds N] [--requests N] [--json]`.

Four classes, 1,000 tenants, an engine that runs 64 requests within KV and prefill limits, and a backlog of constant size: each round feeds
requests one by one and lets a running one end after each, so a request is submitted, dispatched and settled in it, with all polls
that an edge makes. A figure is microseconds of CPU a request, the median of the rounds (least to most); making the requests is not counted.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time

from bench.machine import describe
from fairlane import plugins
from fairlane.core.request import Request, Start
from fairlane.core.scheduler import Scheduler
from fairlane.core.values import Engine, Outcome, PoolSpec, PriorityClass, Tenant, Usage

WAITING = (0, 1_000, 10_000, 100_000)
TENANTS = 1_000
RUNNING = 64
ENGINE = Engine("e", RUNNING, kv_tokens=10_000_000, prefill_tokens=10_000_000)


class Load:
    """A scheduler under a backlog, and requests of four classes and all tenants at random."""

    def __init__(self, waiting: int, *, objectives: bool) -> None:
        shares = {"realtime": 3000, "paid": 1500, "free": 1000, "batch": 1000}
        classes = tuple(
            PriorityClass(name, rank, share, max_queued=10**7, max_wait_s=1e9, ttft_slo_s=1e8 if objectives else None)
            for rank, (name, share) in enumerate(shares.items())
        )
        spec = PoolSpec("p", classes, (ENGINE,))
        self.scheduler = Scheduler(
            [spec],
            lambda p: plugins.policy(p.policy, p.classes),
            plugins.engine_limit,
            0.0,
            make_placement=plugins.placement,
            max_queued=10**7,
        )
        self.scheduler.engine_report("p", "e", up=True)
        self.now = 0.0
        self.running: list[Request] = []
        self._random = random.Random(1)
        self._tenants = [Tenant(f"t{number}") for number in range(TENANTS)]
        self._made = 0
        for request in self.requests(waiting + RUNNING if waiting else RUNNING - 1):
            self.scheduler.submit(request, self.now)
        self._carry_out()

    def requests(self, count: int) -> list[Request]:
        """New ones."""
        made = []
        for _ in range(count):
            self._made += 1
            prompt, output = self._random.randrange(10, 4000), self._random.randrange(1, 800)
            tenant, rank = self._random.choice(self._tenants), self._random.randrange(4)
            made.append(Request(self._made, tenant, "p", rank, "m", prompt, output, prompt + output, prompt, 8000, self.now, output))
        return made

    def round(self, count: int) -> float:
        """Microseconds a request."""
        requests = self.requests(count)
        victims = [self._random.randrange(RUNNING - 1) for _ in requests]
        scheduler = self.scheduler
        began = time.process_time()
        for request, victim in zip(requests, victims, strict=True):
            self.now += 1e-3
            scheduler.submit(request, self.now)
            self._carry_out()
            ended = self.running.pop(victim)
            scheduler.progress(ended, 1, self.now)
            scheduler.settle(ended, Usage(ended.prompt_tokens, ended.output_tokens + 5), Outcome.COMPLETED, self.now)
            scheduler.depart(ended)
            self._carry_out()
        return (time.process_time() - began) / count * 1e6

    def _carry_out(self) -> None:
        self.running += [decision.request for decision in self.scheduler.poll(self.now) if isinstance(decision, Start)]


def main() -> int:
    """Prints a row for each backlog, without and with an objective in every class."""
    parser = argparse.ArgumentParser(prog="python -m bench.scheduler", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--requests", type=int, default=10_000, metavar="N", help="in a round (default: %(default)s)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for waiting in WAITING:
        for objectives in (False, True):
            load = Load(waiting, objectives=objectives)
            load.round(args.requests)  # warms up
            times = [load.round(args.requests) for _ in range(args.rounds)]
            rows.append({"waiting": waiting, "objectives": objectives, "us": times, "median_us": statistics.median(times)})
            if not args.json:
                spread = f"{statistics.median(times):6.2f} us ({min(times):.2f}-{max(times):.2f})"
                print(f"{waiting:7,} waiting, {'with' if objectives else 'without'} objectives: {spread}", flush=True)
    if args.json:
        print(json.dumps({"about": describe(), "rows": rows}, indent=1))
    else:
        print(", ".join(describe().values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
