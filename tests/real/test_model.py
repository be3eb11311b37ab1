"""A real model behind a real gateway: the same answers as without it, and the order that was promised.

The engine is a llama.cpp server with SmolLM2-135M. One request at a time where texts are compared, because the composition
of a batch changes its numerics.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Event

import openai
import pytest

from fairlane.core.values import CostWeights, Usage
from fairlane.engines import embedded, weights
from tests.harness import Gateway, Json
from tests.meters import until

pytestmark = pytest.mark.engine

SLOTS = 2
MODEL = "smollm2-135m"
CLASSES: list[Json] = [
    {"name": "realtime", "min_share": 0.30, "max_wait_s": 600, "max_queued": 200},
    {"name": "paid", "min_share": 0.15, "max_wait_s": 600},
    {"name": "free", "min_share": 0.10, "max_wait_s": 600},
    {"name": "batch", "min_share": 0.10, "max_wait_s": 86400, "max_queued": 1000},
]
QUESTIONS = ("What is the capital of France?", "Name three colours.", "日本の首都はどこですか。")


@contextmanager
def running_engine() -> Iterator[str]:
    """The URL of a llama.cpp server of our own, so that a test may ask it directly as well."""
    path = weights.find()
    assert path is not None
    loop = asyncio.new_event_loop()
    with ThreadPoolExecutor(1) as thread:
        engine = loop.run_until_complete(embedded.start(path, name=MODEL, slots=SLOTS))
        turning = thread.submit(loop.run_forever)
        try:
            yield engine.url
        finally:
            asyncio.run_coroutine_threadsafe(engine.stop(), loop).result(10)
            loop.call_soon_threadsafe(loop.stop)
            turning.result(10)
            loop.close()


@pytest.fixture(scope="module")
def engine_url() -> Iterator[str]:
    """One engine for all tests of this file."""
    with running_engine() as url:
        yield url


@pytest.fixture
def gateway(engine_url: str, tmp_path: Path) -> Iterator[Gateway]:
    """A gateway with the four classes over that engine; every gauge reads 0 in the end."""
    pool = {"name": "main", "models": [MODEL], "engines": [{"name": "llama", "kind": "llamacpp", "url": engine_url}]}
    anonymous = {"class": "free", "best_class": "realtime"}
    configuration: Json = {"server": {"drain_s": 5}, "pools": [pool], "classes": CLASSES, "anonymous": anonymous}
    with Gateway(configuration, tmp_path) as running:
        yield running
        running.assert_idle()


def client(url: str) -> openai.OpenAI:
    """The official client, unchanged but for where it connects."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key="unused", timeout=600, max_retries=0)


def whole(url: str, question: str) -> tuple[str | None, int, int]:
    """Text, prompt tokens and output tokens of an answer that comes as a whole."""
    answer = client(url).chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": question}], max_tokens=24, temperature=0
    )
    assert answer.usage is not None
    return answer.choices[0].message.content, answer.usage.prompt_tokens, answer.usage.completion_tokens


def streamed(url: str, question: str) -> tuple[str | None, int, int]:
    """The same of an answer that comes in pieces."""
    text, usage = "", None
    for chunk in client(url).chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": question}],
        max_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    ):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    assert usage is not None
    return text, usage.prompt_tokens, usage.completion_tokens


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("ask", [whole, streamed])
def test_official_client_gets_the_same_text_and_usage_as_directly(ask: object, question: str, gateway: Gateway, engine_url: str) -> None:
    """At temperature 0 text and usage through the gateway equal the engine's own, streamed and not."""
    assert callable(ask)
    assert ask(gateway.url, question) == ask(engine_url, question)


def test_completions_and_models_through_the_official_client(gateway: Gateway, engine_url: str) -> None:
    """The older route answers as directly, and the list of models is the pool's."""
    texts = [
        client(url).completions.create(model=MODEL, prompt="The sky is", max_tokens=8, temperature=0).choices[0].text
        for url in (gateway.url, engine_url)
    ]
    assert texts[0] == texts[1]
    assert [m.id for m in client(gateway.url).models.list()] == [MODEL]


def test_queued_streams_never_meet_a_closing_connection(gateway: Gateway) -> None:
    """llama.cpp closes its connection after each streamed answer, whatever it promises; of 48 streams none is lost."""

    def stream_some(_: int) -> None:
        for _ in range(12):
            assert streamed(gateway.url, "Count to three.")[2] > 0

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(stream_some, range(4)))
    assert gateway.metric("fairlane_engine_failures_total") == 0


class Load:
    """Requests of one class, each noted with when it started at the engine and what it cost."""

    def __init__(self, gateway: Gateway, cls: str, max_tokens: int) -> None:
        self._gateway = gateway
        self._cls = cls
        self._max_tokens = max_tokens
        self._numbers = count()
        self.done: list[tuple[float, float, int]] = []  # started, ended, cost

    def one(self) -> None:
        """Sends a request and waits for its answer."""
        question = f"Tell me story number {next(self._numbers)} about the {self._cls} road."
        sent = time.monotonic()
        body = {"model": MODEL, "messages": [{"role": "user", "content": question}], "max_tokens": self._max_tokens}
        answer = self._gateway.open(body, headers=[("X-Fairlane-Class", self._cls)]).finish(300)
        assert answer.status == 200, answer.body
        usage = answer.json()["usage"]
        cost = CostWeights().cost(Usage(usage["prompt_tokens"], usage["completion_tokens"]))
        self.done.append((sent + int(answer.header("x-fairlane-queue-ms") or 0) / 1000, time.monotonic(), cost))

    def until(self, stop: Event) -> None:
        """Sends one after another."""
        while not stop.is_set():
            self.one()


def test_waiting_realtime_goes_before_a_standing_batch_backlog(gateway: Gateway) -> None:
    """With 40 batch requests waiting, 10 realtime ones start before any of them, but for what batch is owed of their cost."""
    batch, realtime = Load(gateway, "batch", 12), Load(gateway, "realtime", 12)
    with ThreadPoolExecutor(50) as threads:
        running = [threads.submit(batch.one) for _ in range(40)]
        gateway.wait_for(waiting=40 - SLOTS)
        began = time.monotonic()
        urgent = [threads.submit(realtime.one) for _ in range(10)]
        for each in (*urgent, *running):
            each.result(300)
    last = max(start for start, _, _ in realtime.done)
    between = [cost for start, _, cost in batch.done if began + 0.05 < start < last]
    total = sum(between) + sum(cost for _, _, cost in realtime.done)
    largest = max(cost for _, _, cost in batch.done)
    assert sum(between) <= 0.10 * total + largest
    assert len(between) <= 1 + 0.10 * len(realtime.done)


@pytest.mark.timeout(240)
def test_batch_gets_its_tenth_while_realtime_saturates(gateway: Gateway) -> None:
    """While realtime keeps both slots asked for, batch gets 10 % of the cost of 150 requests within two requests' cost."""
    loads = [Load(gateway, cls, 16) for cls in ("realtime", "batch")]
    stop = Event()

    def wait_for(total: int) -> float:
        until(lambda: sum(len(load.done) for load in loads) >= total, f"{total} requests are done", 200)
        return time.monotonic()

    with ThreadPoolExecutor(12) as threads:
        running = [threads.submit(load.until, stop) for load in loads for _ in range(6)]
        try:
            began, ended = wait_for(20), wait_for(170)
        finally:
            stop.set()
        for each in running:
            each.result(300)
    served = [sum(cost for start, _, cost in load.done if began <= start <= ended) for load in loads]
    largest = max(cost for load in loads for _, _, cost in load.done)
    assert min(len(load.done) for load in loads) > 5
    assert abs(served[1] - 0.10 * sum(served)) <= 2 * largest
