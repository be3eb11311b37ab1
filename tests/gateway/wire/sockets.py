"""Raw ends for tests of the wire: clients that see every byte, engines that do what a test's script says, a server, a sink.

`run` is how such a test runs: on uvloop, for a bounded time, and failing when anything reached the loop's exception handler or
a task is left over.
"""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

import uvloop

from fairlane.errors import Reason
from fairlane.gateway.wire.exchange import Exchange, Refusal
from fairlane.gateway.wire.http1 import HttpServer
from fairlane.gateway.wire.reader import Early

POST = b"POST /v1/chat/completions?a=1 HTTP/1.1\r\nHost: x\r\n"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
REQUEST = b"POST /v1/x HTTP/1.1\r\nHost: e\r\nContent-Length: 2\r\n\r\n{}"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LIMIT_S = 20.0
SOON_S = 5.0
_clients: list["End"] = []  # of the running test, closed with it


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test on the production loop and hold it to leaving nothing behind."""
    faults: list[dict[str, Any]] = []

    async def whole() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        try:
            async with asyncio.timeout(LIMIT_S):
                await test
        finally:
            for client in _clients:  # held by the list until all are closed: a writer that is freed before is an error
                client.writer.transport.abort()
            _clients.clear()
            await asyncio.sleep(0.005)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(whole())
    assert faults == [], faults


async def until(condition: Callable[[], object], limit_s: float = SOON_S) -> None:
    """Return as soon as the condition holds."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - it watches from outside
            await asyncio.sleep(0.002)


@dataclass
class Answer:
    """One answer as a client reads it; `cut`: the connection ended before the answer did."""

    status: int
    headers: dict[str, str]
    body: bytes
    cut: bool = False

    @property
    def code(self) -> str:
        """The error code of a refusal."""
        return str(json.loads(self.body)["code"])


class End:
    """A raw end of a connection: writes exactly what it is told, keeps what it read and not used."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *pieces: bytes) -> None:
        """Write pieces, each in a segment of its own as far as the kernel allows."""
        for piece in pieces:
            self.writer.write(piece)
            await asyncio.sleep(0)

    async def line_block(self) -> bytes:
        """Read up to an empty line."""
        return await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), SOON_S)

    async def rest(self) -> bytes:
        """Read up to the other's end; a reset ends it too."""
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(), SOON_S)
        return b""

    async def answer(self, *, head_only: bool = False) -> Answer:
        """Read one answer by its own framing."""
        line, *lines = (await self.line_block()).decode("latin-1").rstrip("\r\n").split("\r\n")
        assert line.startswith("HTTP/1.1 "), line
        headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
        answer = Answer(int(line.split(" ")[1]), headers, b"")
        if head_only or answer.status in (100, 204, 304):
            return answer
        try:
            if headers.get("transfer-encoding") == "chunked":
                async for chunk in self._chunks():
                    answer.body += chunk
            elif "content-length" in headers:
                answer.body = await asyncio.wait_for(self.reader.readexactly(int(headers["content-length"])), SOON_S)
            else:
                answer.body = await asyncio.wait_for(self.reader.read(), SOON_S)
        except asyncio.IncompleteReadError as short:
            answer.body += short.partial
            answer.cut = True
        except ConnectionError:
            answer.cut = True
        return answer

    async def _chunks(self) -> AsyncIterator[bytes]:
        while True:
            size = int(await asyncio.wait_for(self.reader.readuntil(b"\r\n"), SOON_S), 16)
            chunk = await asyncio.wait_for(self.reader.readexactly(size + 2), SOON_S)
            assert chunk.endswith(b"\r\n")
            if not size:
                return
            yield chunk[:-2]

    async def closed(self) -> bool:
        """Say whether the other closed without another byte."""
        return await self.rest() == b""

    def leave(self) -> None:
        """Close at once."""
        self.writer.close()

    def reset(self) -> None:
        """Break the connection with a reset, unless the other has closed it already."""
        if not self.writer.is_closing():
            sock = self.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.transport.abort()


async def connect(port: int, *, receive_bytes: int = 0) -> End:
    """Open a raw connection, with a small receive buffer if asked."""
    sock = socket.socket()
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client = End(*await asyncio.open_connection(sock=sock, limit=1 << 16 if receive_bytes else 1 << 22))
    _clients.append(client)
    return client


class Peer(End):
    """An engine's end of one connection."""

    async def request(self) -> bytes:
        """Read one whole request, head and body; empty when the gateway closed instead."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            return head + await self.reader.readexactly(int(length[0].split(b":")[1]) if length else 0)
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""


@dataclass
class Engine:
    """What a scripted engine has seen."""

    port: int = 0
    connections: int = 0
    open: int = 0
    requests: list[bytes] = field(default_factory=list)


Script = Callable[[Peer], Awaitable[None]]


@contextlib.asynccontextmanager
async def engine(script: Script) -> AsyncIterator[Engine]:
    """Listen, and play the script on every connection; a script that returns closes its connection."""
    seen = Engine()
    tasks: set[asyncio.Task[None]] = set()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        seen.open += 1
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        peer = Peer(reader, writer)
        try:
            await script(peer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        except RuntimeError:
            if not writer.is_closing():  # uvloop's way to say that the gateway closed
                raise
        finally:
            seen.open -= 1
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(play, "127.0.0.1", 0)
    seen.port = server.sockets[0].getsockname()[1]
    try:
        yield seen
    finally:
        server.close()
        for task in tasks.copy():
            task.cancel()
        await asyncio.sleep(0.001)


def says(*pieces: bytes, then: str = "stay", pause_s: float = 0.0) -> Script:
    """An engine that answers each request with these pieces, and then stays, is silent, closes or resets."""

    async def script(peer: Peer) -> None:
        while await peer.request():
            for piece in pieces:
                await peer.send(piece)
                await asyncio.sleep(pause_s)
            if then == "reset":
                peer.reset()
            if then != "stay":
                return

    return script


def render(status: int, reason: Reason, message: str) -> tuple[bytes, bytes]:
    """The refusals of the wire, as a gateway would make them."""
    return b"content-type: application/json\r\n", json.dumps({"status": status, "code": reason, "message": message}).encode()


@dataclass
class Listener:
    """A server under test."""

    server: HttpServer
    port: int
    errors: list[Exception]
    tasks: set[asyncio.Task[None]]  # of asynchronous servers


Serve = Callable[[Exchange], Awaitable[None] | None]


class Waiter:
    """The worker of an exchange that is served by a task; it sees to the answer where the task makes a mistake."""

    def __init__(self, exchange: Exchange, serving: Awaitable[None], listener: Listener) -> None:
        self._exchange = exchange
        self._listener = listener
        self._task = asyncio.ensure_future(self._run(serving))
        listener.tasks.add(self._task)
        self._task.add_done_callback(listener.tasks.discard)

    def abandon(self) -> None:
        self._task.cancel()

    async def _run(self, serving: Awaitable[None]) -> None:
        exchange = self._exchange
        try:
            await serving
        except Exception as error:  # noqa: BLE001 - it is what the test asks for
            self._listener.errors.append(error)
        if exchange.started:
            exchange.abort()
        else:
            exchange.respond(500, b"", b"")


async def flushed(exchange: Exchange) -> None:
    """Return once the client's last byte is handed to the kernel, or the client has left."""
    event = asyncio.Event()
    exchange.when_flushed(event.set)
    await event.wait()


def nothing_early(exchange: Exchange) -> Refusal | None:
    """Refuse nothing."""
    del exchange
    return None


class Limits(TypedDict, total=False):
    """What a test may set of a server."""

    early: Early
    max_body_bytes: int
    max_connections: int
    max_header_bytes: int
    header_s: float
    body_s: float
    keep_alive_s: float
    stall_s: float


@contextlib.asynccontextmanager
async def serving(serve: Serve, **limits: Unpack[Limits]) -> AsyncIterator[Listener]:
    """Run a server; at the end nothing of it is left. A `serve` that is asynchronous runs in a task for each exchange."""

    def call(exchange: Exchange) -> None:
        waiting = serve(exchange)
        if waiting is not None:
            exchange.worker = Waiter(exchange, waiting, listener)

    errors: list[Exception] = []
    defaults = Limits(early=nothing_early, max_body_bytes=1 << 20, max_connections=100)
    server = HttpServer(call, render=render, on_error=lambda _, error: errors.append(error), **(defaults | limits))
    listening = await asyncio.get_running_loop().create_server(server.protocol, "127.0.0.1", 0)
    listener = Listener(server, listening.sockets[0].getsockname()[1], errors, set())
    try:
        yield listener
    finally:
        listening.close()
        await server.close(0)
        assert not server.connections
        await until(lambda: not listener.tasks)
