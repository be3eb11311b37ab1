"""The admin port, asked over real connections."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import uvloop

from fairlane.admin.server import CONNECTIONS_MAX, AdminServer
from fairlane.errors import SettingsError
from fairlane.telemetry.metrics import Metrics, Sample
from tests.telemetry.requests import past


class World:
    """What the pages show; a test changes it while the server runs."""

    def __init__(self) -> None:
        self.metrics = Metrics(("fast",), {"main": ("a",)}, (), lambda: Sample((), (), {}, 3))
        self.ready = (True, "ready")
        self.state: Callable[[], dict[str, Any]] = lambda: {"pools": {"main": {0: "fast"}}}
        self.draining = {"a": False, "e@::1": False}

    def show_state(self) -> dict[str, Any]:
        return self.state()

    def engines(self) -> list[dict[str, Any]]:
        return [{"engine": engine, "draining": draining} for engine, draining in self.draining.items()]

    def drain(self, engine: str, *, draining: bool) -> None:
        if engine not in self.draining:
            raise LookupError
        self.draining[engine] = draining


def server_of(world: World) -> AdminServer:
    """An admin port of this world that is not open yet."""
    return AdminServer(world.metrics, world.show_state, lambda: world.ready, world.engines, world.drain)


@asynccontextmanager
async def serving(world: World) -> AsyncIterator[AdminServer]:
    """The admin port of this world on a free port."""
    server = server_of(world)
    await server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def connected(address: tuple[str, int]) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A raw connection, closed in the end whatever happens."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        yield reader, writer
    finally:
        writer.close()
        await writer.wait_closed()


async def ask(server: AdminServer, path: str, method: str = "GET", more: str = "") -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer on a connection of its own; `more` are header lines."""
    async with connected(server.address) as (reader, writer):
        writer.write(f"{method} {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n{more}\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    status, *fields = head.decode().split("\r\n")
    headers = {name.lower(): text for name, text in (field.split(": ", 1) for field in fields)}
    return int(status.split(" ")[1]), headers, body


def run(test: Callable[[World, AdminServer], Awaitable[None]]) -> None:
    """Run the test beside an open admin port, on the loop that production uses."""

    async def main() -> None:
        world = World()
        async with serving(world) as server:
            await test(world, server)

    uvloop.run(asyncio.wait_for(main(), 20))


def test_healthz_says_ok() -> None:
    """The process answers, whatever the state of its engines; a HEAD gets the same without the body."""

    async def test(world: World, server: AdminServer) -> None:
        world.ready = (False, "no engine")
        status, headers, body = await ask(server, "/healthz")
        assert (status, body) == (200, b"ok")
        assert "date" in headers
        assert "server" not in headers
        assert await ask(server, "/healthz", "HEAD") == (200, headers, b"")

    run(test)


def test_readyz_gives_verdict_and_reason() -> None:
    """200 while requests can be served, else 503, each with the reason."""

    async def test(world: World, server: AdminServer) -> None:
        status, headers, body = await ask(server, "/readyz")
        assert (status, headers["content-type"]) == (200, "application/json")
        assert json.loads(body) == {"ready": True, "reason": "ready"}
        world.ready = (False, "draining")
        status, _, body = await ask(server, "/readyz")
        assert (status, json.loads(body)) == (503, {"ready": False, "reason": "draining"})

    run(test)


def test_metrics_are_served_as_prometheus_reads_them() -> None:
    """The page is the text format 0.0.4, says so, and shows what was counted a moment ago."""

    async def test(world: World, server: AdminServer) -> None:
        world.metrics.request(past(cls="fast", outcome="completed"), 0.5)
        status, headers, body = await ask(server, "/metrics")
        assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert b'fairlane_requests_total{class="fast",outcome="completed"} 1.0\n' in body
        assert b"fairlane_client_connections 3.0\n" in body
        assert body == world.metrics.render()

    run(test)


def test_the_state_is_json() -> None:
    """The state is asked for at each request and may hold numbers as keys and names in any script."""

    async def test(world: World, server: AdminServer) -> None:
        status, headers, body = await ask(server, "/admin/state")
        assert (status, headers["content-type"]) == (200, "application/json")
        assert json.loads(body) == {"pools": {"main": {"0": "fast"}}}
        world.state = lambda: {"tenants": ["课程"]}
        assert json.loads((await ask(server, "/admin/state"))[2]) == {"tenants": ["课程"]}

    run(test)


@pytest.mark.parametrize("path", ["/", "/nothing", "/healthz/", "/admin", "/metrics%00", "/v1/models"])
def test_unknown_paths_are_a_json_404(path: str) -> None:
    """Nothing is redirected or guessed, and the error has the form that all our errors have."""

    async def test(_: World, server: AdminServer) -> None:
        status, headers, body = await ask(server, path)
        assert (status, headers["content-type"]) == (404, "application/json")
        assert json.loads(body)["error"]["code"] == "not_found"

    run(test)


def test_engines_are_drained_and_resumed_by_name() -> None:
    """Each order answers with the engine as it is then, the same when it is given twice; the list shows all."""

    async def test(world: World, server: AdminServer) -> None:
        for order, draining in (("drain", True), ("drain", True), ("resume", False), ("resume", False)):
            for engine, written in (("a", "a"), ("e@::1", "e%40%3A%3A1"), ("e@::1", "e@::1")):
                status, _, body = await ask(server, f"/admin/engines/{written}/{order}", "POST")
                assert (status, json.loads(body)) == (200, {"engine": engine, "draining": draining})
            assert world.draining == {"a": draining, "e@::1": draining}
            assert json.loads((await ask(server, "/admin/engines"))[2]) == {"engines": world.engines()}

    run(test)


def test_an_unknown_engine_is_a_404_that_names_the_known() -> None:
    """Of many engines the first ten are named."""

    async def test(world: World, server: AdminServer) -> None:
        status, _, body = await ask(server, "/admin/engines/b/drain", "POST")
        error = json.loads(body)["error"]
        assert (status, error["code"], error["message"]) == (404, "not_found", "No engine 'b'; there are: a, e@::1.")
        world.draining = dict.fromkeys(map(str, range(12)), False)
        error = json.loads((await ask(server, "/admin/engines/b/resume", "POST"))[2])["error"]
        assert error["message"].endswith("there are: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more.")

    run(test)


def test_a_web_page_cannot_drain_an_engine() -> None:
    """A browser tells the origin of what it posts, and nothing of ours does; such an order changes nothing."""

    async def test(world: World, server: AdminServer) -> None:
        status, _, body = await ask(server, "/admin/engines/a/drain", "POST", "origin: http://evil.test\r\n")
        assert (status, json.loads(body)["error"]["code"]) == (403, "invalid_request")
        assert not world.draining["a"]

    run(test)


def test_an_order_is_no_page() -> None:
    """A GET of an order changes nothing: it is a 405 that names POST."""

    async def test(world: World, server: AdminServer) -> None:
        status, headers, _ = await ask(server, "/admin/engines/a/drain")
        assert (status, headers["allow"]) == (405, "POST")
        assert not world.draining["a"]

    run(test)


def test_pages_are_only_read() -> None:
    """Any method but GET and HEAD is a JSON 405 that names them."""

    async def test(_: World, server: AdminServer) -> None:
        for method in ("POST", "PUT", "DELETE"):
            status, headers, body = await ask(server, "/admin/state", method)
            assert (status, json.loads(body)["error"]["code"]) == (405, "method_not_allowed")
            assert {word.strip() for word in headers["allow"].split(",")} == {"GET", "HEAD"}

    run(test)


def test_a_page_that_fails_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    """A fault in the state gives a JSON 500 that tells nothing of it; the log has the traceback, other pages still work."""

    async def test(world: World, server: AdminServer) -> None:
        world.state = lambda: {"oops": 1 / 0}
        status, _, body = await ask(server, "/admin/state")
        assert (status, json.loads(body)["error"]["code"]) == (500, "internal_error")
        assert b"division" not in body
        assert (await ask(server, "/healthz"))[0] == 200

    run(test)
    assert "ZeroDivisionError" in caplog.text


def test_a_port_in_use_is_told_clearly() -> None:
    """The error names the setting, the address and the cause; so does that of an address of another machine."""

    async def test(world: World, server: AdminServer) -> None:
        host, port = server.address
        second = server_of(world)
        with pytest.raises(SettingsError) as taken:
            await second.start(host, port)
        assert str(taken.value) == (
            f"cannot listen on 127.0.0.1:{port} (admin pages): address already in use, perhaps by another fairlane; "
            "use --admin-listen HOST:PORT or server.admin_listen"
        )
        with pytest.raises(SettingsError, match=r"192\.0\.2\.1:0 \(admin pages\): cannot assign requested address; use --admin-listen"):
            await second.start("192.0.2.1", 0)
        with pytest.raises(RuntimeError, match="not open"):
            _ = second.address
        await second.stop()
        assert (await ask(server, "/healthz"))[0] == 200

    run(test)


def test_stop_frees_the_port_at_once() -> None:
    """An idle kept-alive connection does not hold up the stop, and the same address can be had again."""

    async def test(world: World, server: AdminServer) -> None:
        address = server.address
        async with connected(address) as (reader, writer):
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: admin\r\n\r\n")
            await reader.readuntil(b"ok")
            began = time.monotonic()
            await server.stop()
            assert time.monotonic() - began < 0.9
            assert await reader.read() == b""
        again = server_of(world)
        await again.start(*address)
        assert again.address == address
        await again.stop()
        await again.stop()

    run(test)


def test_stop_does_not_wait_for_a_reader_that_stopped_reading() -> None:
    """A page that is never fetched to its end is cut off within the bound."""

    async def test(world: World, server: AdminServer) -> None:
        world.state = lambda: {"text": "x" * (16 << 20)}
        loop = asyncio.get_running_loop()
        with socket.create_connection(server.address) as stalled:
            stalled.setblocking(False)
            await loop.sock_sendall(stalled, b"GET /admin/state HTTP/1.1\r\nhost: admin\r\n\r\n")
            assert (await loop.sock_recv(stalled, 15)).startswith(b"HTTP/1.1 200")
            began = time.monotonic()
            await server.stop()
            assert time.monotonic() - began < 3
            received = 0
            while piece := await loop.sock_recv(stalled, 1 << 20):
                received += len(piece)
        assert received < 16 << 20, "the page went on after the stop"

    run(test)


def test_the_process_keeps_its_signals() -> None:
    """Whoever runs the gateway decides what SIGINT and SIGTERM do, while the admin port is open and after."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    seen: list[list[Any]] = []

    async def main() -> None:
        world = World()
        seen.append([signal.getsignal(number) for number in numbers])
        async with serving(world) as server:
            await ask(server, "/healthz")
            seen.append([signal.getsignal(number) for number in numbers])
        seen.append([signal.getsignal(number) for number in numbers])

    uvloop.run(main())
    assert seen[0] == seen[1] == seen[2]


def test_connections_above_the_bound_are_refused() -> None:
    """The port's connections are limited: what is beyond the limit gets 503, and once they leave there is room again."""

    async def test(_: World, server: AdminServer) -> None:
        async with AsyncExitStack() as idle:
            for _number in range(CONNECTIONS_MAX):
                await idle.enter_async_context(connected(server.address))
            assert (await ask(server, "/healthz"))[0] == 503
        statuses: list[int] = []
        while 200 not in statuses and len(statuses) < 500:
            statuses.append((await ask(server, "/healthz"))[0])
        assert statuses[-1] == 200

    run(test)


def test_what_is_slow_to_import_comes_late() -> None:
    """Importing the admin server and the metrics loads none of uvicorn, Starlette and prometheus_client."""
    program = (
        "import sys, fairlane.admin.server, fairlane.telemetry.log;"
        "print([name for name in ('uvicorn', 'starlette', 'prometheus_client') if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert printed.stdout == "[]\n"
