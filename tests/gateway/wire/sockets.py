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
from fairlane.gateway.wire.upstream import EnginePool, Headers

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
Serve = Callable[[Exchange], Awaitable[None]]


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
    """Run a server; at the end nothing of it is left."""
    errors: list[Exception] = []
    defaults = Limits(early=nothing_early, max_body_bytes=1 << 20, max_connections=100)
    server = HttpServer(serve, render=render, on_error=lambda _, error: errors.append(error), **(defaults | limits))
    listening = await asyncio.get_running_loop().create_server(server.protocol, "127.0.0.1", 0)
    try:
        yield Listener(server, listening.sockets[0].getsockname()[1], errors)
    finally:
        listening.close()
        await server.close(0)
        assert not server.connections
        assert not server.tasks


async def echo(exchange: Exchange) -> None:
    """Answer with what was understood."""
    exchange.respond(200, b"x-path: %b\r\n" % exchange.path.encode(), exchange.body)


def ask(*pieces: bytes, serve: Serve = echo, answers: int = 1, closed: bool | None = None, **limits: Unpack[Limits]) -> list[Answer]:
    """Send pieces on one connection, read that many answers, and see whether the connection was then closed."""
    seen: list[Answer] = []

    async def talk() -> None:
        async with serving(serve, **limits) as listener:
            client = await connect(listener.port)
            await client.send(*pieces)
            seen.extend([await client.answer() for _ in range(answers)])
            if closed is True:
                assert await client.closed()
            elif closed is False:
                await client.send(GET)
                assert (await client.answer()).status == 200
            client.leave()
            assert listener.errors == []

    run(talk())
    return seen


def post(body: bytes, *lines: bytes) -> bytes:
    """A whole request with a declared length."""
    return POST + b"".join(line + b"\r\n" for line in lines) + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def chunked(*chunks: bytes) -> bytes:
    """A whole request in chunks."""
    return POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"


@dataclass
class Recorder:
    """A sink that notes everything in order."""

    calls: list[str] = field(default_factory=list)
    status: int = 0
    headers: Headers = field(default_factory=list)
    length: int | None = None
    payload: bytes = b""
    last_said: bool = False
    why: str = ""
    unsent: bool = False

    def head(self, status: int, headers: Headers, length: int | None) -> None:
        self.calls.append("head")
        self.status, self.headers, self.length = status, headers, length

    def body(self, data: bytes, last: bool) -> None:
        assert data
        assert not self.last_said
        self.calls.append("body")
        self.payload += data
        self.last_said = last

    def ended(self) -> None:
        self.calls.append("ended")

    def failed(self, why: str, unsent: bool) -> None:
        self.calls.append("failed")
        self.why, self.unsent = why, unsent

    @property
    def over(self) -> bool:
        assert self.calls.count("ended") + self.calls.count("failed") <= 1
        return bool(self.calls) and self.calls[-1] in {"ended", "failed"}


def play(script: Script, test: Callable[[EnginePool], Awaitable[None]], *, idle_keep_s: float = 1.5, rest_s: float = 0.0) -> int:
    """Run a test against a scripted engine; return how many connections the engine saw. In the end none is open."""
    connections = 0

    async def whole() -> None:
        nonlocal connections
        async with engine(script) as seen:
            pool = EnginePool("127.0.0.1", seen.port, rest_s=rest_s, idle_keep_s=idle_keep_s)
            try:
                await test(pool)
            finally:
                pool.close()
            assert pool.open_connections == 0
            await until(lambda: seen.open == 0)
            connections = seen.connections

    run(whole())
    return connections


async def ask_engine(pool: EnginePool, sink: Recorder | None = None) -> Recorder:
    """One request and its whole answer."""
    sink = sink or Recorder()
    connection = pool.acquire() or await pool.connect()
    connection.send(REQUEST, sink)
    await until(lambda: sink.over)
    return sink
