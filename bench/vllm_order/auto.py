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
# 60 blocks of 128 tokens for 16 places: about ten of these requests fit. Events of eight tokens each cost the client less.
ENGINE: Final = "--max-num-seqs 16 --num-gpu-blocks-override 60 --stream-interval 8"
CLIENTS: Final = 32
VOCABULARY: Final = 512
MOST_TOKENS: Final = 2000
TITLES: Final = {
    "goodput_per_s": "tokens/s within",
    "completed_per_s": "tokens/s of all",
    "within": "part within",
    "ttft_p95_s": "TTFT p95, s",
    "tpot_p95_s": "TPOT p95, s",
    "preempted_first": "preempted 1st",
    "preempted_second": "2nd",
    "preempted_third": "3rd third",
    "slots": "slots at the end",
    "wrong": "wrong",
}


def mixed(name: str, seed: int) -> Ask:
    """A request whose length nobody knows: each token ends it with the same chance, seven in ten answers are short."""
    draw = random.Random(seed)
    mean = 100 if draw.random() < 0.7 else 500
    prompt = draw.randint(64, 512)
    return Ask(name, "batch", prompt, MOST_TOKENS, streamed=True, stops=VOCABULARY // mean, seed=draw.randrange(2**31))


def run(options: argparse.Namespace, progress: Callable[[str], None]) -> Found:
    """One engine; in each round `auto` and the fixed numbers in turn, each with a gateway that has just started."""
    runs: dict[str, list[Figures]] = {}
    progress("c: vLLM starts")
    with vllm(options.vllm, [*ENGINE.split(), "--scheduler-cls", "bench.vllm_order.watched.Stock"], {}) as engine:
        for number in range(options.rounds):
            for slots in (None, *options.fixed):
                arm = "auto" if slots is None else str(slots)
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
    """A row for each number of slots, and how near `auto` comes to the best fixed one."""
    lines = [
        f"\nc: {CLIENTS} clients, {options.rounds} rounds; within: first token in {options.ttft:g} s, then {options.tpot:g} s a token",
        "  slots " + "".join(f"{title:22}" for title in TITLES.values()),
    ]
    for arm, found in runs.items():
        lines.append(f"  {arm:6}" + "".join(f"{spread([one[key] for one in found]):22}" for key in TITLES))
    goodput = {arm: median(one["goodput_per_s"] for one in found) for arm, found in runs.items()}
    fixed = {arm: value for arm, value in goodput.items() if arm != "auto"}
    best = max(fixed, key=lambda arm: fixed[arm])
    lines.append(f"  auto has {goodput['auto'] / max(1e-9, fixed[best]):.2f} of the goodput of {best} slots, the best fixed number")
    return "\n".join(lines)
