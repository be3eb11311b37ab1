"""The controllers in a gateway that serves, over real sockets. The seconds of their ticks are virtual."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlane.engines.adapter import Gauges
from fairlane.gateway.app import Gateway
from fairlane.gateway.engines.ramp import FIRST_PART
from fairlane.gateway.links import EngineLink
from fairlane.settings import parse
from fairlane.telemetry.log import Log
from tests.caller import Call, chat, request_bytes
from tests.harness import engine, settings
from tests.stub import Plan, Stub, Usage

START = 16
HELD = Plan(held=True)


@pytest.fixture
def stub() -> Iterator[Stub]:
    """Give a server."""
    with Stub(HELD) as upstream:
        yield upstream
        assert upstream.faults == []


async def until(true: Callable[[], bool]) -> None:
    """Wait until it is so."""
    for _ in range(2500):
        if true():
            return
        await asyncio.sleep(0.002)
    pytest.fail("it did not become so")


class Live:
    """A gateway with one engine, its clients, and the time of its controller."""

    def __init__(self, gateway: Gateway, stub: Stub, log: Path) -> None:
        self.gateway = gateway
        self.stub = stub
        self.link = gateway.links["main", "e0"]
        self.now = time.monotonic()
        self.port = 0
        self.calls: list[Call] = []
        self._rounds = 0
        self._log_file = log
        take, self._preemptions = self.link.on_gauges, 0
        assert take is not None

        def on_gauges(link: EngineLink, gauges: Gauges | None) -> None:
            self._rounds += 1
            if gauges is not None:
                link.gauges_at = self.now
            take(link, gauges)

        self.link.on_gauges = on_gauges

    @property
    def slots(self) -> int:
        """What the scheduler may use of the engine."""
        return self.gateway.scheduler.pools["main"].places.engines["e0"].limit.slots  # type: ignore[no-any-return, unused-ignore]

    @property
    def move(self) -> str | None:
        """Why the limit is where it is."""
        return None if self.link.limit is None else self.link.limit.last_move

    def ask(self, count: int, *, stream: bool = False) -> None:
        """Clients come."""
        self.calls += [Call(self.port, request_bytes(chat(stream=stream))) for _ in range(count)]

    def running(self) -> int:
        """What the scheduler has on the engine."""
        return self.gateway.scheduler.pools["main"].places.running

    async def drain(self) -> None:
        """All that was asked is answered."""

        def over() -> bool:
            self.stub.release_all()
            return not self.gateway.scheduler.queued and not self.running()

        await until(over)

    async def serve(self, count: int, *, stream: bool) -> None:
        """Clients come and are served."""
        done = sum(not seen.running for seen in self.stub.requests)
        self.ask(count, stream=stream)
        await until(lambda: sum(not seen.running for seen in self.stub.requests) == done + count and not self.running())

    def show(self, running: int, waiting: int, preemptions: int = 0) -> None:
        """What vLLM's page says from now on."""
        page = f"vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\nvllm:num_preemptions_total {preemptions}\n"
        self.stub.pages["/metrics"] = f'{page}vllm:cache_config_info{{kv_cache_size_tokens="100000"}} 1\n'.encode()

    async def second(self, count: int = 1) -> None:
        """So many seconds pass, each with a new page."""
        for _ in range(count):
            self.now += 1.0
            rounds = self._rounds
            await until(lambda: self._rounds > rounds + 1)  # noqa: B023 - the one that was under way has the page from before
            self.gateway.limits.tick(self.now)

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The lines of this kind so far."""
        self.gateway.log.flush()
        lines = [json.loads(line) for line in self._log_file.read_text().splitlines()]
        return [line for line in lines if line["event"] == event]


@asynccontextmanager
async def live(
    stub: Stub, folder: Path, *, slots: object = "auto", kind: str = "vllm", kv_tokens: int | None = None, **pool: object
) -> AsyncIterator[Live]:
    """Serve without the timer of the controllers; `pool` are more keys of the pool."""
    configured = {**engine(stub, 1, kind=kind), "slots": slots, "probe_s": 0.01}
    if kv_tokens is not None:
        configured["kv_tokens"] = kv_tokens
    with (folder / "log").open("w") as sink:
        gateway = Gateway(parse(json.dumps(settings([configured], classes=None, tenants=(), anonymous=None, **pool)), "test"), Log(sink))
        world = Live(gateway, stub, folder / "log")
        server = await gateway.loop.create_server(gateway.http.protocol, "127.0.0.1", 0)
        world.port = server.sockets[0].getsockname()[1]
        if kind == "vllm":
            world.show(0, 0)
        world.link.connect_to(stub.url)
        gateway.run(world.link.watch())
        await world.link.probed.wait()
        try:
            yield world
        finally:
            for call in world.calls:
                call.close()
            await until(lambda: not gateway.admission.holders)
            server.close()
            gateway.http.cut()
            await gateway.stop()


def play(story: Coroutine[Any, Any, None]) -> None:
    """Go through it."""
    asyncio.run(story)


def test_it_starts_low_and_grows_under_demand(stub: Stub, tmp_path: Path) -> None:
    """Sixteen at first; one more a second while all are in use, and the scheduler uses them."""

    async def story() -> None:
        async with live(stub, tmp_path) as world:
            assert world.slots == START
            world.ask(8)
            await until(lambda: world.running() == 8)
            await world.second(4)
            assert (world.slots, world.move) == (START, "start")
            world.ask(22)
            await until(lambda: world.running() == START)
            await world.second(5)
            assert (world.slots, world.move) == (START + 5, "demand")
            await until(lambda: world.running() == START + 5)
            assert world.logged("engine_limit") == []

    play(story())


def test_a_preemption_on_the_page_cuts_slots_and_cache(stub: Stub, tmp_path: Path) -> None:
    """What runs goes on, nothing more starts, and the log says so once."""

    async def story() -> None:
        async with live(stub, tmp_path) as world:
            world.ask(20)
            await until(lambda: world.running() == START)
            await world.second()
            world.show(START, 0, preemptions=3)
            await world.second(3)
            assert (world.slots, world.move, world.running()) == (14, "preemption", START)
            assert world.link.offer.kv_tokens == 96_000
            (line,) = world.logged("engine_limit")
            assert (line["engine"], line["slots"], line["was"], line["kv_ratio"], line["why"]) == ("e0", 14, 16, 0.96, "preemption")

    play(story())


def test_an_engine_with_fewer_slots_than_assumed_is_found(stub: Stub, tmp_path: Path) -> None:
    """What waits inside it shows at the second page, and stays here from then on."""

    async def story() -> None:
        async with live(stub, tmp_path) as world:
            world.ask(20)
            await until(lambda: world.running() == START)
            world.show(4, 12)
            await world.second(3)
            assert (world.slots, world.move) == (6, "waiting")

    play(story())


def test_without_its_page_it_freezes_and_sinks_to_half(stub: Stub, tmp_path: Path) -> None:
    """It serves on, and grows again from where it is when the page is back. The fall is one line in the log."""

    async def story() -> None:
        async with live(stub, tmp_path) as world:
            world.ask(30)
            await until(lambda: world.running() == START)
            await world.second(3)
            assert world.slots == START + 2
            del stub.pages["/metrics"]
            await world.second(2)
            frozen = world.slots
            assert frozen <= START + 5
            await world.second(60)
            assert (world.slots, world.link.up, world.move) == (frozen // 2, True, "stale")
            assert [line["why"] for line in world.logged("engine_limit")] == ["stale"]

    play(story())


def test_an_engine_that_is_out_keeps_what_was_found(stub: Stub, tmp_path: Path) -> None:
    """Nothing is learned of it meanwhile, and it comes back as it was, a quarter of that at first."""

    async def story() -> None:
        async with live(stub, tmp_path) as world:
            world.ask(30)
            await until(lambda: world.running() == START)
            await world.second(4)
            found = world.slots
            stub.probe_status = 500
            await until(lambda: not world.link.up)
            await world.second(30)
            stub.probe_status = 200
            await until(lambda: world.link.up)
            assert START < found == world.link.spec.slots
            assert world.slots == -(-found // FIRST_PART)

    play(story())


def test_what_is_pinned_stays(stub: Stub, tmp_path: Path) -> None:
    """A number of slots switches the controller off; a size of the cache is left as it is."""

    async def story() -> None:
        async with live(stub, tmp_path, slots=8) as world:
            world.ask(10)
            await until(lambda: world.running() == 8)
            await world.second(2)
            world.show(8, 0, preemptions=5)
            await world.second(4)
            assert (world.slots, world.link.offer.kv_tokens, world.move) == (8, 100_000, None)
        async with live(stub, tmp_path, kv_tokens=70_000) as world:
            world.show(0, 0, preemptions=1)
            await world.second(2)
            world.show(0, 0, preemptions=2)
            await world.second(2)
            assert (world.link.offer.kv_tokens, world.move) == (70_000, "preemption")

    play(story())


def test_pinned_slots_that_the_engine_does_not_have_are_told(stub: Stub, tmp_path: Path) -> None:
    """One warning with what it runs and what to do, until it was right for once."""

    async def story() -> None:
        async with live(stub, tmp_path, slots=8) as world:
            world.show(4, 4)
            await world.second(5)
            (line,) = world.logged("engine_slots")
            assert (line["level"], line["slots"], line["runs"], line["waiting"]) == ("warning", 8, 4, 4)
            assert "set slots" in line["problem"]

    play(story())


def test_slow_tokens_cut(stub: Stub, tmp_path: Path) -> None:
    """The pace of streams is measured here, against what the pool promises."""

    async def story() -> None:
        async with live(stub, tmp_path, tpot_slo_s=0.001) as world:
            stub.plan = Plan(texts=("x",) * 10, interval_s=0.005, usage=Usage(10, 10))
            await world.second()
            await world.serve(6, stream=True)
            assert world.link.counts.tokens == 60
            await world.second()
            assert (world.slots, world.move) == (14, "tpot")

    play(story())


def test_an_engine_without_metrics_is_judged_by_its_first_tokens(stub: Stub, tmp_path: Path) -> None:
    """It grows while they come as when it was calm, and is cut when they come later; which is said once."""

    async def story() -> None:
        async with live(stub, tmp_path, kind="openai") as world:
            world.ask(20)
            await until(lambda: world.running() == START)
            await world.second(4)
            assert (world.slots, world.move) == (START, "start")
            await world.drain()
            stub.plan = Plan()
            for _ in range(6):
                await world.serve(1, stream=True)
            stub.plan = HELD
            world.ask(30, stream=True)
            await until(lambda: world.running() == START)
            await world.second(3)
            assert (world.slots, world.move) == (START + 3, "demand")
            stub.plan = Plan(delay_s=0.7)
            await asyncio.sleep(0.7)
            await world.drain()
            await world.second()
            assert (world.slots, world.move) == (17, "ttft")
            first, _ = world.logged("engine_limit")
            assert first["why"].startswith("no metrics; ")

    play(story())


@pytest.mark.parametrize("status", [429, 503])
def test_its_refusals_cut(stub: Stub, tmp_path: Path, status: int) -> None:
    """An engine that refuses with ten others running has room for about ten."""

    async def story() -> None:
        async with live(stub, tmp_path, kind="openai") as world:
            world.ask(10)
            await until(lambda: world.running() == 10)
            await world.second()
            stub.plan = Plan(status=status)
            world.ask(1)
            await until(lambda: len(stub.requests) == 11 and world.running() == 10)
            await world.second()
            assert (world.slots, world.move) == (10, "refused")

    play(story())
