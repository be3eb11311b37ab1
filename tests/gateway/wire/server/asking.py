"""Requests as raw bytes, a client that sends them and reads the answers, and a connection that leads nowhere."""

import asyncio
from collections.abc import Callable
from typing import Unpack

from fairlane.gateway.wire.exchange import Exchange
from tests.gateway.wire.sockets import GET, POST, Answer, Limits, Serve, connect, run, serving


def echo(exchange: Exchange) -> None:
    """Answer with what was understood."""
    exchange.respond(200, b"x-path: %b\r\n" % exchange.head.path.encode(), exchange.body)


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


class Nowhere:
    """A connection for exchanges that are read and never answered."""

    transport: asyncio.Transport
    peer = ""
    lost = behind = paused = stopped = False
    flushes: list[tuple[Exchange, Callable[[], None]]]

    def fell_behind(self) -> None:
        raise NotImplementedError

    def ended(self, exchange: Exchange) -> None:
        raise NotImplementedError

    def broke(self, exchange: Exchange) -> None:
        raise NotImplementedError

    def failed(self, exchange: Exchange, error: Exception) -> None:
        raise NotImplementedError
