"""What a prediction and a learned answer cost: `python -m bench.predictor [--trace FILE] [--model MODEL] [--json]`.

A figure in microseconds is the mean over the calls of a stream of requests, each call counting as in the best of several equal
passes; the first half of a pass warms up. An answer is learned as soon as it was predicted, so each call finds something changed.
`again_us` is for the last requests asked about once more. Without `--trace` the stream is the simulator's reference workload:
`single` as it is, `turn` with each request going on after its tenant's last answer. `estimate` is all that the gateway asks for,
prompt tokens included.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import NamedTuple, TypeVar

from fairlane.core.values import Usage
from fairlane.lab import trained
from fairlane.lab.records import Record, read
from fairlane.predict import state
from fairlane.predict.asked import Asked
from fairlane.predict.estimate import Estimate, Estimator, PromptSize
from fairlane.predict.predictor import LengthModel, Predictor
from fairlane.predict.trained import hints
from fairlane.sim.load.workload import REFERENCE

PASSES = 5
REQUESTS_MAX = 20_000
SECONDS = 2_400.0  # of the reference workload: nearly as many requests
CAPS = (None, 512, 4_096)
TEXT = "Write a detailed essay of about 500 words that explains why queues grow, and list three examples.\n" * 12

T = TypeVar("T")
Times = tuple[list[float], list[float]]  # of each prediction and of each learned answer, in seconds


class Sample(NamedTuple):
    """A request, its prompt in the units of the gateway, and what it will have used."""

    record: Record
    prompt: PromptSize
    usage: Usage


def reference(*, talks: bool) -> Iterator[Record]:
    """The reference workload, each request with one of three caps in turn."""
    last: dict[str, Record] = {}
    for arrival, cap in zip(REFERENCE.arrivals(1.0, 1, SECONDS), cycle(CAPS), strict=False):
        asked = Asked(arrival.tenant, "model", arrival.rank, prompt_tokens=arrival.prompt_tokens)
        before = last.get(arrival.tenant)
        if talks and before is not None:
            asked = asked._replace(previous=before.tokens, idle_s=arrival.at - before.t)
        tokens = arrival.output_tokens if cap is None else min(cap, arrival.output_tokens)
        last[arrival.tenant] = record = Record(arrival.at, asked, cap, tokens, arrival.at)
        yield record


def samples(records: Iterator[Record]) -> list[Sample]:
    """The stream to measure with; prompts are taken for ASCII text."""
    found = [record for record, _ in zip(records, range(REQUESTS_MAX), strict=False)]
    return [Sample(r, PromptSize(4 * r.asked.prompt_tokens), Usage(r.asked.prompt_tokens, r.tokens)) for r in found]


def passed(stream: list[Sample], predict: Callable[[Sample], T], learn: Callable[[Sample, T], None]) -> Times:
    """The seconds of each prediction and of each learned answer, the one after the other."""
    predict_s: list[float] = []
    learn_s: list[float] = []
    clock = time.perf_counter
    for sample in stream:
        begin = clock()
        said = predict(sample)
        middle = clock()
        learn(sample, said)
        end = clock()
        predict_s.append(middle - begin)
        learn_s.append(end - middle)
    return predict_s, learn_s


def best(part: str, run: Callable[[], Times]) -> dict[str, float]:
    """The figures of several passes."""
    figures = {}
    for name, passes in zip(("predict", "learn"), zip(*[run() for _ in range(PASSES)], strict=True), strict=True):
        calls = [min(times) for times in zip(*passes, strict=True)]
        figures[f"{part}_{name}_us"] = statistics.fmean(calls[len(calls) // 2 :]) * 1e6
    return figures


def bare(stream: list[Sample], lengths: LengthModel) -> Times:
    """One pass of a predictor."""
    return passed(
        stream,
        lambda s: lengths.predict(s.record.asked, s.record.cap),
        lambda s, said: lengths.learn(s.record.asked, s.record.cap, said, s.record.tokens, s.record.t),
    )


def whole(stream: list[Sample], estimator: Estimator) -> Times:
    """One pass of an estimator."""

    def predict(sample: Sample) -> Estimate:
        asked = sample.record.asked
        return estimator.estimate(
            asked.tenant, asked.model, sample.prompt, sample.record.cap, 1, rank=asked.rank, previous=asked.previous, idle_s=asked.idle_s
        )

    def learn(sample: Sample, estimate: Estimate) -> None:
        asked = sample.record.asked
        estimator.learn(asked.tenant, asked.model, sample.prompt, estimate, sample.usage, complete=True, now=sample.record.t)

    return passed(stream, predict, learn)


def best_us(work: Callable[[], object], calls: int) -> float:
    """Microseconds of one of so many calls, the best of several times."""
    spent = []
    for _ in range(PASSES):
        before = time.perf_counter()
        work()
        spent.append(time.perf_counter() - before)
    return min(spent) / calls * 1e6


def figures(name: str, stream: list[Sample], model: Path | None) -> dict[str, float]:
    """All figures of a stream."""
    found = best(name, lambda: bare(stream, Predictor()))
    found |= best(f"{name}_estimate", lambda: whole(stream, Estimator()))
    if model is not None:
        found |= best(f"{name}_model", lambda: bare(stream, trained.read(model)[0]))
    estimator = Estimator()
    whole(stream, estimator)
    last = [sample.record for sample in stream[-500:]]
    found[f"{name}_again_us"] = best_us(lambda: [estimator.lengths.predict(r.asked, r.cap) for r in last], len(last))
    saved = state.dump(estimator, 0.0)
    found[f"{name}_histograms"] = len(estimator.lengths.histograms.levels.nodes)
    found[f"{name}_state_kb"] = len(saved) / 1024
    found[f"{name}_dump_ms"] = best_us(lambda: state.dump(estimator, 0.0), 1000)
    found[f"{name}_load_ms"] = best_us(lambda: state.load(saved, Estimator(), 0.0), 1000)
    return found


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="requests of this trace instead of the reference workload")
    parser.add_argument("--model", type=Path, help="a trained model, measured as well")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    streams = {"single": reference(talks=False), "turn": reference(talks=True)} if args.trace is None else {"trace": read(args.trace)}
    found = {"hints_us": best_us(lambda: [hints.of(TEXT) for _ in range(1000)], 1000)}
    for name, records in streams.items():
        found |= figures(name, samples(records), args.model)
    print(json.dumps(found) if args.json else "\n".join(f"{key:26} {value:8.2f}" for key, value in found.items()))


if __name__ == "__main__":
    main()
