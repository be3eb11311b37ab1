"""What the plugin adds to a step of vLLM's scheduler: `sh bench/vllm_scheduler/run.sh steps`.

Without a worker: timed is all that the scheduler does for a step, `add_request` for what came, `schedule` and `update_from_output`, and
of that the part spent in the line of waiting requests, which is all that the plugin replaces. In CPU time of the thread. A steady state:
as many requests are sent as end, so that so many always wait, of all classes and many tenants. Stock and plugin take turns in blocks
of steps, so that what else the machine does meets both; whole steps differ by more between two runs than by what the plugin adds.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from time import thread_time_ns
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from bench.vllm_scheduler.harness import make_scheduler
from fairlane.sim.engine.model import EngineModel
from fairlane.sim.figures.arithmetic import percentile
from fairlane.vllm_plugin import FairlaneScheduler
from fairlane.vllm_plugin.waiting import WaitingRequests

BLOCK = 250  # steps in turn
TENANTS = 40


class Meter:
    """Nanoseconds spent in the methods that it has wrapped, those inside another not twice."""

    def __init__(self) -> None:
        self.spent = 0
        self._inside = False

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same method, timed."""

        def timed(*args: Any) -> Any:  # noqa: ANN401 - any method's
            if self._inside:
                return call(*args)
            self._inside = True
            begun = thread_time_ns()
            try:
                return call(*args)
            finally:
                self.spent += thread_time_ns() - begun
                self._inside = False

        return timed


def timed_line(line: Any, meter: Meter) -> None:  # noqa: ANN401 - vLLM's or ours
    """Lets the meter time every method of this line."""
    kind = type(line)
    names = {name for one in (FCFSRequestQueue, WaitingRequests) for name in vars(one) if not name.startswith("_")} & set(dir(kind))
    special = {"__len__", "__bool__"}
    line.__class__ = type(kind.__name__, (kind,), {name: meter.wrap(getattr(kind, name)) for name in names | special})


class Steady:
    """One scheduler with so many requests running and waiting."""

    def __init__(self, kind: type[Scheduler], running: int, waiting: int) -> None:
        self.waiting = waiting
        self.scheduler = make_scheduler(EngineModel(kv_tokens=2_000_000, running_max=running), kind)
        self.requests = requests()
        self.meter = Meter()
        timed_line(self.scheduler.waiting, self.meter)
        self.steps_us: list[float] = []
        self.lines_us: list[float] = []

    def step(self) -> None:
        """Sends what is missing, and times a step."""
        scheduler = self.scheduler
        coming = [next(self.requests) for _ in range(self.waiting - len(scheduler.waiting))]
        self.meter.spent = 0
        begun = thread_time_ns()
        for request in coming:
            scheduler.add_request(request)
        output = scheduler.schedule()
        decided = thread_time_ns()
        made = sampled(output, scheduler.requests)
        resumed = thread_time_ns()
        scheduler.update_from_output(output, made)
        self.lines_us.append(self.meter.spent / 1000)
        self.steps_us.append((thread_time_ns() - resumed + decided - begun) / 1000)


def requests() -> Iterator[Request]:
    """Short requests without end, the same for every scheduler; the fields of the plugin mean nothing to stock vLLM."""
    draw, number = random.Random(1), 0
    while True:
        number += 1
        output = draw.randint(20, 108)
        said = {"class": draw.randrange(4), "tenant": f"t{draw.randrange(TENANTS)}", "cost": 64 + 4 * output, "output": output}
        told = {f"fairlane_{name}": value for name, value in said.items()} | {"fairlane_key": float(number)}
        limits = SamplingParams(max_tokens=output, min_tokens=output, ignore_eos=True, extra_args=told)
        yield Request(str(number), [number] * 64, limits, None, arrival_time=float(number))


def sampled(output: Any, requests: dict[str, Request]) -> ModelRunnerOutput:  # noqa: ANN401 - vLLM's is untyped here
    """A token for each request whose prompt is computed."""
    names = list(output.num_scheduled_tokens)
    tokens = [[] if requests[name].is_prefill_chunk else [0] for name in names]
    return ModelRunnerOutput(req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, sampled_token_ids=tokens)


def main() -> None:
    """Prints median and p99 of both, for the whole step and for its line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--waiting", type=int, default=256)
    parser.add_argument("--running", type=int, nargs="+", default=[8, 64])
    args = parser.parse_args()
    print(f"{args.steps} steps, {args.waiting} waiting, {TENANTS} tenants; µs of CPU time a step, median (p99)\n")
    print("| running | step, stock | step, plugin | its line, stock | its line, plugin |\n|---|---|---|---|---|")
    for running in args.running:
        both = [Steady(kind, running, args.waiting) for kind in (AsyncScheduler, FairlaneScheduler)]
        for block in range(args.steps // BLOCK + 1):
            for one in both:
                for _ in range(BLOCK):
                    one.step()
                if block == 0:  # the first fills the batch
                    one.steps_us.clear()
                    one.lines_us.clear()
        times = [sorted(figures) for figures in (*(one.steps_us for one in both), *(one.lines_us for one in both))]
        cells = [f"{percentile(figures, 50):.1f} ({percentile(figures, 99):.1f})" for figures in times]
        print(f"| {running} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
