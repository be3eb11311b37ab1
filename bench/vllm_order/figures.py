"""Figures of one run, and of several: medians and ranges."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from bench.vllm_order.load import BATCH, PROMPT, REALTIME, REALTIME_TOKENS, Plan, Played
from bench.vllm_order.starts import Passed

Figures = dict[str, float]

TITLES = {
    "realtime": "realtime requests scored",
    "ttft_p50_s": "their TTFT p50, s",
    "ttft_p95_s": "TTFT p95, s",
    "ttft_p99_s": "TTFT p99, s",
    "output_per_s": "output tokens/s",
    "of_flood": "of the flood straight to vLLM",
    "started": "realtime requests that started",
    "passed_gateway": "passed over in the gateway",
    "unowed_gateway": "... where batch was not owed",
    "passed_engine": "passed over in the engine",
    "unowed_engine": "... where batch was not owed",
    "wasted": "tokens computed for nothing",
    "wrong": "refused or wrong answers",
}


def costs(plan: Plan) -> dict[str, float]:
    """What a request of each class costs by the gateway's default weights."""
    return {REALTIME: PROMPT + 4 * REALTIME_TOKENS, BATCH: PROMPT + 4 * plan.batch_tokens}


def quantile(values: Iterable[float], q: float) -> float:
    """The value that a part `q` of them does not exceed; nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else math.nan


def figures(plan: Plan, played: Played, passed: Mapping[str, Passed]) -> Figures:
    """Of one run. A realtime request without a first token counts as one that never came."""
    ttft = [math.inf if answer.ttft_s is None else answer.ttft_s for answer in played.realtime]
    found = {"realtime": float(len(ttft))}
    if ttft:
        found |= {f"ttft_p{n}_s": quantile(ttft, n / 100) for n in (50, 95, 99)}
    found["output_per_s"] = played.scored_tokens / plan.seconds
    for place, one in passed.items():
        found["started"] = one.realtime
        found |= {f"passed_{place}": one.passed, f"unowed_{place}": one.passed_unowed}
    if plan.drain:
        found["wasted"] = played.wasted
    return found | {"wrong": float(played.wrong)}


def table(runs: Sequence[Mapping[str, Figures]], over: tuple[str, str], ratios: Sequence[str]) -> str:
    """A row for each figure: medians and ranges of both runs of the pairs and, for those in `ratios`, of one run's over the other's."""
    lines = [f"  {'':32}" + "".join(f"{arm:26}" for arm in runs[0]) + " / ".join(over)]
    for key, title in TITLES.items():
        cells = [spread([run[arm][key] for run in runs if key in run[arm]]) for arm in runs[0]]
        if any(cells):
            ratio = spread([run[over[0]][key] / run[over[1]][key] for run in runs]) if key in ratios else ""
            lines.append(f"  {title:32}{''.join(f'{cell:26}' for cell in cells)}{ratio}".rstrip())
    return "\n".join(lines)


def brief(found: Figures) -> str:
    """One run in a few words."""
    return ", ".join(f"{TITLES[key]} {number(found[key])}" for key in ("ttft_p99_s", "output_per_s", "wrong") if key in found)


def spread(values: Sequence[float]) -> str:
    """The median, and the range in brackets; nothing of nothing."""
    if not values:
        return ""
    return f"{number(statistics.median(values))} ({number(min(values))}-{number(max(values))})"


def number(value: float) -> str:
    """With three digits that mean something."""
    return f"{value:.0f}" if abs(value) >= 100 or float(value).is_integer() else f"{value:.3g}"
