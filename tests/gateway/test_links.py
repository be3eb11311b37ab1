"""An engine's link and what it is told of the engine's load, over real sockets and without a gateway."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fairlane.core.values import Engine
from fairlane.engines.adapter import Gauges
from fairlane.gateway.links import FULL_S, EngineLink
from fairlane.settings import EngineSettings
from fairlane.telemetry.log import Log
from tests.stub import Stub

PAGE = b'vllm:num_requests_running 2\nvllm:num_requests_waiting 3\nvllm:cache_config_info{kv_cache_size_tokens="900"} 1\n'
TOLD = Gauges(running=2, waiting=3)


@pytest.fixture
def stub() -> Iterator[Stub]:
    """Give a server with a page of metrics."""
    with Stub() as upstream:
        upstream.pages["/metrics"] = PAGE
        yield upstream


class Watched:
    """A link that is probed often, and all that it told."""

    def __init__(self, stub: Stub, folder: Path, **more: object) -> None:
        settings = EngineSettings.model_validate({"name": "e", "kind": "vllm", "url": stub.url, "probe_s": 0.02, **more})
        self._log_file = folder / "log"
        self.stirred = asyncio.Event()
        self.changes: list[tuple[bool, Engine]] = []
        self.rounds: list[Gauges | None] = []
        spec = Engine("e", settings.slots if isinstance(settings.slots, int) else 0, kv_tokens=settings.kv_tokens)
        self._settings, self._spec = settings, spec
        self.link: EngineLink

    def _change(self, link: EngineLink) -> None:
        self.changes.append((link.up, link.offer))
        self.stirred.set()

    def _measure(self, _: EngineLink, gauges: Gauges | None) -> None:
        self.rounds.append(gauges)
        self.stirred.set()

    async def watch(self, *steps: Callable[["Watched"], object]) -> "Watched":
        """Probe until each step is true in turn."""
        with self._log_file.open("w") as sink:
            log = Log(sink)
            self.link = EngineLink("main", self._settings, self._spec, self._change, log)
            self.link.on_gauges = self._measure
            await self._probe(steps)
            log.flush()
        return self

    async def _probe(self, steps: Sequence[Callable[["Watched"], object]]) -> None:
        assert self._settings.url is not None
        self.link.connect_to(self._settings.url)
        watching = asyncio.create_task(self.link.watch())
        async with asyncio.timeout(5):
            for step in steps:
                while not step(self):
                    self.stirred.clear()
                    await self.stirred.wait()
            rounds = len(self.rounds)
            while len(self.rounds) == rounds:  # to its end, so that no probe is under way
                self.stirred.clear()
                await self.stirred.wait()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert self.link.connections is not None
        self.link.connections.close()

    def lines(self) -> list[dict[str, Any]]:
        """What was logged."""
        return [json.loads(line) for line in self._log_file.read_text().splitlines()]


def test_every_round_tells_its_gauges(stub: Stub, tmp_path: Path) -> None:
    """Each round of probes is told of once, and only a change of the engine's numbers is told to the scheduler."""

    async def run() -> Watched:
        return await Watched(stub, tmp_path, slots=4).watch(lambda watched: len(watched.rounds) == 4)

    watched = asyncio.run(run())
    assert set(watched.rounds) == {TOLD}
    assert (watched.link.gauges, watched.link.measured) == (TOLD, True)
    assert watched.changes == [(True, Engine("e", 4, kv_tokens=900))]


def test_a_page_that_cannot_be_read_is_told_once_and_stops_nothing(stub: Stub, tmp_path: Path) -> None:
    """The log names the engine and the reason; the last numbers and the size of the KV cache stay as they were."""

    def spoil(_: Watched) -> bool:
        stub.pages["/metrics"] = b"<html>"
        return True

    def mend(watched: Watched) -> bool:
        if watched.rounds[-3:] == [None] * 3:
            stub.pages["/metrics"] = PAGE.replace(b" 3", b" 5")
            assert (watched.link.gauges, watched.link.measured, watched.link.up) == (TOLD, False, True)
            return True
        return False

    async def run() -> Watched:
        return await Watched(stub, tmp_path, slots=4).watch(
            lambda watched: watched.rounds, spoil, mend, lambda watched: watched.rounds[-1] is not None
        )

    watched = asyncio.run(run())
    assert watched.link.gauges == Gauges(running=2, waiting=5)
    assert watched.changes == [(True, Engine("e", 4, kv_tokens=900))]
    warnings = [(line["engine"], line["problem"]) for line in watched.lines() if line["level"] == "warning"]
    assert warnings == [("e", "/metrics: has none of the series that are known; its load is not known")]


def test_the_configured_size_of_the_cache_counts(stub: Stub, tmp_path: Path) -> None:
    """What an operator wrote is not overwritten by what the engine tells."""

    async def run() -> Watched:
        return await Watched(stub, tmp_path, slots=4, kv_tokens=500).watch(lambda watched: watched.rounds)

    assert asyncio.run(run()).link.offer.kv_tokens == 500


def test_kinds_without_metrics_tell_none(stub: Stub, tmp_path: Path) -> None:
    """The callback comes all the same, so that whoever counts on it knows."""

    async def run() -> Watched:
        return await Watched(stub, tmp_path, slots=4, kind="openai").watch(lambda watched: len(watched.rounds) == 2)

    watched = asyncio.run(run())
    assert (set(watched.rounds), watched.link.gauges, watched.link.measured) == ({None}, None, False)


def test_a_full_engine_is_offered_with_what_it_runs_for_a_moment(stub: Stub, tmp_path: Path) -> None:
    """Probes change nothing about it, a later refusal lowers it and makes it last longer, and then its slots come back one by one."""

    async def run() -> Watched:
        def fill(watched: Watched) -> bool:
            watched.link.refused(503, 3)
            watched.link.refused(503, 2)
            return True

        return await Watched(stub, tmp_path, slots=4).watch(
            lambda watched: watched.link.up, fill, lambda watched: len(watched.rounds) > 2, lambda watched: len(watched.changes) == 5
        )

    watched = asyncio.run(run())
    assert [offer.slots for _, offer in watched.changes] == [4, 3, 2, 3, 4]
    assert watched.link.full_s > FULL_S
    watched.link.succeeded(0, 0.0)  # a refusal
    assert watched.link.full_s > FULL_S
    watched.link.succeeded(5, 1.0)
    assert watched.link.full_s == FULL_S
    assert watched.link.spec.slots == 4
