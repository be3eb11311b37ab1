"""A pool with one scripted engine, alone and behind a server that relays to it: the engine's side, and both sides of the wire."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypedDict, Unpack

from fairlane.gateway.wire.exchange import Exchange
from fairlane.gateway.wire.relay import Relay
from fairlane.gateway.wire.upstream import AnswerHead, EnginePool, Headers, UpstreamConnection
from tests.gateway.wire.sockets import REQUEST, End, Engine, Listener, Peer, Script, connect, engine, run, serving, until

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
EXTRA = b"x-fairlane-class: free\r\n"
USAGE = {"prompt_tokens": 7, "completion_tokens": 3}


def event(text: str, **more: object) -> bytes:
    """One event with output, as engines send it."""
    return f"data: {json.dumps({'choices': [{'delta': {'content': text}}], **more}, ensure_ascii=False)}\n\n".encode()


EVENTS = [event(text) for text in ("你好，", "世界 ", "😀")]
USAGE_EVENT = b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n"
DONE = b"data: [DONE]\n\n"
REPLY = b"".join([*EVENTS, USAGE_EVENT, DONE])


def framed(*pieces: bytes) -> list[bytes]:
    """The pieces as chunks."""
    return [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]


def plain(body: bytes, status: bytes = b"200 OK", *lines: bytes, kind: bytes = b"application/json") -> bytes:
    """A whole answer with a length."""
    head = b"".join(line + b"\r\n" for line in (b"Content-Type: " + kind, *lines))
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, head, len(body), body)


@dataclass
class Recorder:
    """A sink that notes everything in order; its connection may be silent for as long as the test lasts."""

    calls: list[str] = field(default_factory=list)
    status: int = 0
    headers: Headers = field(default_factory=list)
    length: int | None = None
    pieces: list[bytes] = field(default_factory=list)
    framed: list[bytes] = field(default_factory=list)
    complete: bool = False
    why: str = ""
    unsent: bool = False

    def begin(self, head: AnswerHead, length: int | None, data: bytes, last: bool) -> None:
        self._note("begin", data, last)
        self.status, self.headers, self.length = head.status, head.headers, length

    def more(self, data: bytes, framed: bytes, last: bool) -> None:
        assert data or last
        assert not framed or not last
        self._note("more", data, last)
        if framed:
            self.framed.append(framed)

    def failed(self, why: str, unsent: bool) -> None:
        assert not self.over
        self.calls.append("failed")
        self.why, self.unsent = why, unsent

    def _note(self, call: str, data: bytes, last: bool) -> None:
        assert not self.over
        self.calls.append(call)
        self.pieces.append(data)
        self.complete = last

    @property
    def payload(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def over(self) -> bool:
        return self.complete or "failed" in self.calls


def ask(connection: UpstreamConnection, sink: Recorder, request: bytes = REQUEST) -> None:
    """Send a request with limits that no test meets."""
    connection.send(request, sink, 60, 60)


async def ask_engine(pool: EnginePool) -> Recorder:
    """One request and its whole answer."""
    sink = Recorder()
    ask(pool.acquire() or await pool.connect(), sink)
    await until(lambda: sink.over)
    return sink


async def hears(peer: Peer) -> None:
    """An engine that says nothing."""
    await peer.rest()


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


class Passage:
    """One request of a client: the worker of its exchange, as simple as one can be."""

    def __init__(self, gateway: "Gateway", exchange: Exchange) -> None:
        self._gateway = gateway
        self._exchange = exchange
        self._connecting = asyncio.ensure_future(self._connect())
        self._relay: Relay | None = None

    async def _connect(self) -> None:
        made, exchange = self._gateway, self._exchange
        connection = made.pool.acquire() or await made.pool.connect()
        self._relay = relay = Relay(
            exchange,
            connection,
            lambda _: EXTRA,
            self._relayed,
            first_byte_s=made.first_byte_s,
            idle_s=made.idle_s,
            stream=exchange.head.path == "/stream",
        )
        made.relays.append(relay)
        relay.start(REQUEST)

    def _relayed(self, relay: Relay) -> None:
        assert not relay._attached
        self._gateway.ended.append(relay)
        if not relay.started:
            status = 504 if relay.failure == "timeout" else 502
            self._exchange.respond(status, b"", str(relay.failure).encode())
        self._exchange.when_flushed(self._over)

    def abandon(self) -> None:
        self._connecting.cancel()
        if self._relay is not None:
            self._relay.abandon()
        self._over()

    def _over(self) -> None:
        self._exchange.worker = None
        self._gateway.over_count += 1


@dataclass
class Gateway:
    """A server that relays every request to one engine, and what came of each."""

    listener: Listener
    pool: EnginePool
    engine: Engine
    relays: list[Relay] = field(default_factory=list)
    ended: list[Relay] = field(default_factory=list)
    over_count: int = 0
    first_byte_s: float = 5
    idle_s: float = 5

    async def client(self, *, stream: bool = True, receive_bytes: int = 0, version: bytes = b"1.1") -> End:
        """A client that has sent its request."""
        client = await connect(self.listener.port, receive_bytes=receive_bytes)
        await self.ask(client, stream=stream, version=version)
        return client

    async def ask(self, client: End, *, stream: bool = True, version: bytes = b"1.1") -> None:
        """Send a request on an open connection."""
        path = b"/stream" if stream else b"/plain"
        await client.send(b"POST %b HTTP/%b\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}" % (path, version))

    async def over(self, count: int = 1) -> Relay:
        """The last relay, once that many requests are over."""
        await until(lambda: self.over_count >= count)
        return self.relays[-1]


class Spans(TypedDict, total=False):
    """What a test may set of a relay."""

    first_byte_s: float
    idle_s: float
    stall_s: float


@contextlib.asynccontextmanager
async def gateway(script: Script, **spans: Unpack[Spans]) -> AsyncIterator[Gateway]:
    """Client side, relay and engine side together; in the end no connection and no task is left of them."""
    async with engine(script) as seen:
        pool = EnginePool("127.0.0.1", seen.port, rest_s=0)

        def serve(exchange: Exchange) -> None:
            exchange.worker = Passage(made, exchange)

        try:
            async with serving(serve, stall_s=spans.get("stall_s", 5)) as listener:
                made = Gateway(listener, pool, seen, first_byte_s=spans.get("first_byte_s", 5), idle_s=spans.get("idle_s", 5))
                yield made
                assert listener.errors == []
                assert pool.open_connections == len(pool._idle)
        finally:
            pool.close()
        await until(lambda: seen.open == 0)


def through(script: Script, test: Callable[[Gateway], Awaitable[None]], **spans: Unpack[Spans]) -> None:
    """Run a test through a gateway."""

    async def whole() -> None:
        async with gateway(script, **spans) as made:
            await test(made)

    run(whole())
