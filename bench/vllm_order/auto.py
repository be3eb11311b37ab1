"""Part c: how many requests run at once, on an engine whose KV cache is too small for as many as it has places."""

import argparse
import asyncio
import random
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Final

from bench.vllm_order.calls import Answer, Ask, ask
from bench.vllm_order.figures import Figures, quantile, spread
from bench.vllm_order.load import PAUSE_S, idle
from bench.vllm_order.modes import Mode, settings
from bench.vllm_order.order import Found
from bench.vllm_order.servers import Engine, gateway, series, vllm

PARTS: Final = frozenset("c")
ENGINE: Final = "--max-num-seqs 16 --stream-interval 8"  # events of eight tokens each cost the client less
CLIENTS: Final = 32
AUTO: Final = "auto"
VOCABULARY: Final = 512
MOST_TOKENS: Final = 2000
TITLES: Final = {
    "goodput_per_s": "tokens/s within",
    "completed_per_s": "tokens/s of all",
    "within": "part within",
    "ttft_p95_s": "TTFT p95, s",
    "tpot_p95_s": "TPOT p95, s",
    "preempted_first": "preempted, 1st third",
    "preempted_second": "preempted, 2nd third",
    "preempted_third": "preempted, 3rd third",
    "slots": "slots at the end",
    "wrong": "refused or wrong",
}


def mixed(name: str, seed: int) -> Ask:
    """A request whose length nobody knows: each token ends it with the same chance, seven in ten answers are short.

    vLLM draws the tokens anew in each run: where it preempts on a CPU it does not take a seed.
    """
    draw = random.Random(seed)
    mean = 100 if draw.random() < 0.7 else 500
    prompt = draw.randint(64, 512)
    return Ask(name, "batch", prompt, MOST_TOKENS, streamed=True, stops=VOCABULARY // mean)


def run(options: argparse.Namespace, progress: Callable[[str], None]) -> Found:
    """One engine; in each round `auto` and the fixed numbers in turn, each with a gateway that has just started."""
    runs: dict[str, list[Figures]] = {}
    progress("c: vLLM starts")
    with vllm(options.vllm, [*ENGINE.split(), "--num-gpu-blocks-override", str(options.blocks)], {}) as engine:
        for number in range(options.rounds):
            for slots in (None, *options.fixed):
                arm = AUTO if slots is None else str(slots)
                progress(f"c: round {number + 1}, slots {arm}")
                runs.setdefault(arm, []).append(_one(options, engine, slots, f"c{number}s{arm}"))
    return Found({"c": runs}, page(options, runs), sum(one["wrong"] for arm in runs.values() for one in arm))


def _one(options: argparse.Namespace, engine: Engine, slots: int | None, name: str) -> Figures:
    told = settings(Mode(()), engine.port, slots)
    with tempfile.TemporaryDirectory() as scratch, gateway(options.fairlane, told, Path(scratch)) as front:
        answers, preempted = asyncio.run(play(options.seconds, front.port, engine, name))
        at_end = series(front.admin, "fairlane_engine_slots")
    whole = [one for one in answers if one.whole]
    good = [one for one in whole if (one.ttft_s or 0) <= options.ttft and one.tpot_s <= options.tpot]
    return {
        "goodput_per_s": sum(one.tokens for one in good) / options.seconds,
        "completed_per_s": sum(one.tokens for one in whole) / options.seconds,
        "within": len(good) / max(1, len(whole)),
        "ttft_p95_s": quantile([one.ttft_s or 0 for one in whole], 0.95),
        "tpot_p95_s": quantile([one.tpot_s for one in whole], 0.95),
        **dict(zip(("preempted_first", "preempted_second", "preempted_third"), preempted, strict=True)),
        "slots": at_end,
        "wrong": float(len(answers) - len(whole)),
    }


async def play(seconds: float, port: int, engine: Engine, name: str) -> tuple[list[Answer], list[float]]:
    """The answers that ended within so many seconds, and the engine's preemptions in each third of them."""
    answers: list[Answer] = []

    async def client(place: int) -> None:
        sent = 0
        while True:
            answer = await ask(port, mixed(f"{name}-b{place}-{sent}", 1000 * place + sent))
            answers.append(answer)
            sent += 1
            if not answer.whole:
                await asyncio.sleep(PAUSE_S)

    begun = monotonic()
    clients = [asyncio.create_task(client(place)) for place in range(CLIENTS)]
    seen = [await asyncio.to_thread(engine.counter, "num_preemptions_total")]
    for third in (1, 2, 3):
        await asyncio.sleep(begun + third * seconds / 3 - monotonic())
        seen.append(await asyncio.to_thread(engine.counter, "num_preemptions_total"))
    for task in clients:
        task.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    await idle(engine)
    return answers, [after - before for before, after in pairwise(seen)]


def page(options: argparse.Namespace, runs: dict[str, list[Figures]]) -> str:
    """A column for each number of slots, and how near `auto` comes to the best fixed one."""
    lines = [
        f"\nc: how many run at once on {options.blocks} KV blocks, where nobody knows how long answers get.",
        f"{CLIENTS} clients, {options.rounds} rounds; within: first token in {options.ttft:g} s, then {options.tpot:g} s a token",
        f"  {'slots':22}" + "".join(f"{arm:26}" for arm in runs),
    ]
    for key, title in TITLES.items():
        lines.append(f"  {title:22}" + "".join(f"{spread([one[key] for one in found]):26}" for found in runs.values()).rstrip())
    goodput = {arm: median(one["goodput_per_s"] for one in found) for arm, found in runs.items()}
    best = max((arm for arm in runs if arm != AUTO), key=lambda arm: goodput[arm])
    lines.append(f"  auto has {goodput[AUTO] / max(1e-9, goodput[best]):.2f} of the goodput of {best} slots, the best fixed number")
    return "\n".join(lines)
