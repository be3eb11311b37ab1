"""What a link says of an engine at one address of a name, and of one that was away."""

import asyncio
from pathlib import Path

import pytest

from fairlane.core.values import Engine
from fairlane.gateway.links import EngineLink
from fairlane.gateway.wire.upstream import ConnectFailed
from fairlane.settings import EngineSettings
from fairlane.telemetry.log import Log
from tests.stub import Stub


def test_tls_asks_for_the_name_and_not_the_address(tmp_path: Path) -> None:
    """The server at the address is asked for the certificate of the URL's host."""
    hello = bytearray()

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello.extend(await reader.read(1 << 16))
        writer.close()

    async def run(log: Log) -> None:
        server = await asyncio.start_server(hang_up, "127.0.0.2", 0)
        url = f"dns+https://engines.test:{server.sockets[0].getsockname()[1]}"
        settings = EngineSettings.model_validate({"name": "e", "kind": "openai", "url": url})
        link = EngineLink("main", settings, Engine("e", 4), lambda _: None, log)
        link.connect_to(url, "127.0.0.2")
        with pytest.raises(ConnectFailed):
            await link.connect()
        server.close()
        await server.wait_closed()

    with (tmp_path / "log").open("w") as sink:
        asyncio.run(run(Log(sink)))
    assert b"engines.test" in hello
    assert b"127.0.0.2" not in hello


def test_an_engine_that_was_lost_is_offered_in_steps(tmp_path: Path) -> None:
    """At its start it has all four slots; back from a loss two, and all after a step. One that was drained comes back so, too."""
    offers: list[tuple[bool, int]] = []

    async def run(stub: Stub) -> None:
        stirred = asyncio.Event()

        def notify(link: EngineLink) -> None:
            offers.append((link.open, link.offer.slots))
            stirred.set()

        async def until(open_: bool, slots: int) -> None:
            while not offers or offers[-1] != (open_, slots):
                stirred.clear()
                await stirred.wait()

        settings = EngineSettings.model_validate({"name": "e", "kind": "openai", "url": stub.url, "probe_s": 0.05})
        with (tmp_path / "log").open("w") as sink:
            link = EngineLink("main", settings, Engine("e", 4), notify, Log(sink))
            link.connect_to(stub.url)
            watching = asyncio.create_task(link.watch())
            async with asyncio.timeout(10):
                await until(True, 4)
                link.unreachable("a test says so")
                await until(True, 2)
                await until(True, 4)
                link.update(draining=True)
                link.update(draining=False)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            link.unreachable("the test is over", gone=True)

    with Stub() as stub:
        asyncio.run(run(stub))
    assert offers == [(True, 4), (False, 4), (True, 2), (True, 4), (False, 4), (True, 2), (False, 4)]
