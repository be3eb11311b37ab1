"""A server that relays to one scripted engine: both sides of the wire and what joins them."""

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypedDict, Unpack

from fairlane.gateway.wire.exchange import Exchange
from fairlane.gateway.wire.relay import Relay
from fairlane.gateway.wire.upstream import EnginePool
from tests.gateway.wire.sockets import End, Engine, Listener, Script, connect, engine, run, serving, until

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
class Gateway:
    """A server that relays every request to one engine, and what came of each."""

    listener: Listener
    pool: EnginePool
    engine: Engine
    relays: list[Relay] = field(default_factory=list)
    ended: list[Relay] = field(default_factory=list)
    tasks_over: int = 0

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
        await until(lambda: self.tasks_over >= count)
        return self.relays[-1]


class Spans(TypedDict, total=False):
    """What a test may set of a relay."""

    first_byte_s: float
    idle_s: float
    stall_s: float


@contextlib.asynccontextmanager
async def gateway(script: Script, **spans: Unpack[Spans]) -> AsyncIterator[Gateway]:
    """Client side, relay and engine side together; in the end no connection and no task is left of them."""
    first_byte_s, idle_s = spans.get("first_byte_s", 5), spans.get("idle_s", 5)
    async with engine(script) as seen:
        pool = EnginePool("127.0.0.1", seen.port, rest_s=0)

        async def serve(exchange: Exchange) -> None:
            connection = pool.acquire() or await pool.connect()
            relay = Relay(
                exchange, connection, lambda _: EXTRA, first_byte_s=first_byte_s, idle_s=idle_s, stream=exchange.path == "/stream"
            )
            made.relays.append(relay)
            try:
                await relay.run(b"POST /v1 HTTP/1.1\r\nHost: e\r\nContent-Length: 2\r\n\r\n{}")
                made.ended.append(relay)
                if not relay.started:
                    status = 504 if relay.failure == "timeout" else 502
                    exchange.respond(status, b"", str(relay.failure).encode())
                await exchange.flushed()
            finally:
                made.tasks_over += 1

        try:
            async with serving(serve, stall_s=spans.get("stall_s", 5)) as listener:
                made = Gateway(listener, pool, seen)
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
