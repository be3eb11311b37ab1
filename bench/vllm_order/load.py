"""The load of one run: a flood of batch requests in closed loop, and realtime requests that arrive when they arrive."""

import asyncio
import random
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from bench.vllm_order.calls import Answer, Ask, ask
from bench.vllm_order.servers import Engine

REALTIME_TOKENS: Final = 40
PROMPT: Final = 64
REALTIME: Final = "realtime"
BATCH: Final = "batch"
PAUSE_S = 0.5  # of a batch client that was refused


@dataclass(frozen=True)
class Plan:
    """What is sent. Realtime requests come in from the start and are scored from `warm_s` on."""

    name: str  # the beginning of the names of all its requests
    seconds: float  # scored
    warm_s: float
    flood: int = 64
    batch_tokens: int = 200
    rate: float = 0.0  # realtime requests a second
    seed: int = 0
    drain: bool = False  # whether the batch requests still there at the end are served too, or given up

    def arrivals(self) -> list[float]:
        """When realtime requests come, in seconds from the start: a Poisson process, the same for the same seed."""
        draw, at, found = random.Random(self.seed), 0.0, []
        while self.rate > 0 and (at := at + draw.expovariate(self.rate)) < self.warm_s + self.seconds:
            found.append(at)
        return found


@dataclass
class Played:
    """What came of it."""

    realtime: list[Answer] = field(default_factory=list)  # the scored ones, in order of arrival
    answers: list[Answer] = field(default_factory=list)  # all, except batch requests that were given up
    scored_tokens: float = 0.0  # of output, that the engine computed in the scored time
    all_tokens: float = 0.0  # of prompts and output, that it computed from start to end

    @property
    def wasted(self) -> float:
        """The part of all tokens that is in no answer; where nothing is given up, what was computed for nothing."""
        delivered = sum(answer.usage.get("total_tokens", 0) for answer in self.answers)
        return 1.0 - delivered / self.all_tokens if self.all_tokens else 0.0

    @property
    def wrong(self) -> int:
        """Answers that are none: refused, broken off, or shorter than asked for."""
        return sum(not answer.whole or answer.tokens != answer.ask.tokens for answer in self.answers)


async def play(plan: Plan, port: int, engine: Engine) -> Played:
    """Sends the plan's requests to this port, and ends when every realtime request has its answer."""
    before = await tokens(engine)
    played, begun = Played(), monotonic()
    flooding = asyncio.Event()
    flooding.set()
    flood = [asyncio.create_task(_client(plan, i, port, flooding, played)) for i in range(plan.flood)]
    window = asyncio.create_task(_output_between(engine, begun + plan.warm_s, begun + plan.warm_s + plan.seconds))
    comers = [asyncio.create_task(_comer(plan, i, port, begun + at, played)) for i, at in enumerate(plan.arrivals())]
    realtime = await asyncio.gather(*comers)
    played.scored_tokens = await window
    flooding.clear()
    if not plan.drain:
        for task in flood:
            task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    played.realtime = [answer for answer in realtime if answer.sent_at >= begun + plan.warm_s]
    await idle(engine)
    played.all_tokens = await tokens(engine) - before
    return played


async def idle(engine: Engine) -> None:
    """Waits until nothing runs or waits in the engine."""
    while await asyncio.to_thread(lambda: engine.counter("num_requests_running") + engine.counter("num_requests_waiting")):  # noqa: ASYNC110
        await asyncio.sleep(0.1)


async def tokens(engine: Engine, *kinds: str) -> float:
    """Tokens that the engine has computed since it was started: of prompts and output, if no kind is named."""
    series = [f"{kind}_tokens_total" for kind in kinds or ("prompt", "generation")]
    return await asyncio.to_thread(lambda: sum(engine.counter(name) for name in series))


async def _output_between(engine: Engine, begin: float, end: float) -> float:
    await asyncio.sleep(begin - monotonic())
    before = await tokens(engine, "generation")
    await asyncio.sleep(end - monotonic())
    return await tokens(engine, "generation") - before


async def _client(plan: Plan, place: int, port: int, flooding: asyncio.Event, played: Played) -> None:
    sent = 0
    while flooding.is_set():
        answer = await ask(port, Ask(f"{plan.name}-b{place}-{sent}", BATCH, PROMPT, plan.batch_tokens))
        played.answers.append(answer)
        sent += 1
        if not answer.whole:
            await asyncio.sleep(PAUSE_S)


async def _comer(plan: Plan, index: int, port: int, at: float, played: Played) -> Answer:
    await asyncio.sleep(at - monotonic())
    answer = await ask(port, Ask(f"{plan.name}-r{index}", REALTIME, PROMPT, REALTIME_TOKENS, streamed=True))
    played.answers.append(answer)
    return answer
