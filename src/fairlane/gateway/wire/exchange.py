"""One request of a client and the answer to it: what the wire hands up, and what is written back.

An `Exchange` frames an answer (one write where it can be one), says on the wire whether the connection stays open, and
knows how to break off so that the client notices. It is driven by callbacks as well as by a task: none of its writing
methods waits. Back-pressure goes the other way, through `flow`.
"""

import asyncio
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final, Protocol

Refusal = tuple[int, bytes, bytes]  # status, ready header lines, body


def _status_lines() -> dict[int, bytes]:
    phrases = {status.value: status.phrase for status in HTTPStatus}
    return {code: f"HTTP/1.1 {code} {phrases.get(code, '')}\r\n".encode() for code in range(100, 1000)}


STATUS_LINES = _status_lines()
LAST_CHUNK = b"0\r\n\r\n"


# How the end of an answer's body is told.
EMPTY: Final = 0  # no body by definition: HEAD, 204, 304
LENGTH: Final = 1
CHUNKED: Final = 2
CLOSE: Final = 3  # HTTP/1.0 without a known length


class Flow(Protocol):
    """The source of an answer, told when the client's send buffer is full and when it has room again."""

    def pause(self) -> None:
        """Stop producing."""

    def resume(self) -> None:
        """Produce again."""


class Wire(Protocol):
    """The connection as an exchange sees it."""

    transport: asyncio.Transport
    lost: bool
    paused: bool

    def ended(self, exchange: "Exchange") -> None:
        """The answer is written in full."""

    def broke(self, exchange: "Exchange") -> None:
        """The answer will never be complete: close so that the client can tell."""

    async def drained(self) -> None:
        """Return once nothing is left to send, or the connection is lost."""


class Exchange:
    """A request as it came, and the way to answer it exactly once: `respond`, or `start`, `write`..., `end`."""

    __slots__ = (
        "_framing",
        "_head",
        "_left",
        "_wire",
        "body",
        "finished",
        "flow",
        "headers",
        "http_10",
        "keep_alive",
        "method",
        "owner",
        "path",
        "peer",
        "query",
        "refusal",
        "started",
        "target",
        "task",
    )

    def __init__(self, wire: Wire, peer: str) -> None:
        self._wire = wire
        self.peer = peer
        self.method = ""
        self.target = b""
        self.path = ""
        self.query = b""
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.http_10 = False
        self.keep_alive = False
        self.refusal: Refusal | None = None
        self.owner: object = None  # whose request it is, as far as the wire's user has found out
        self.task: asyncio.Task[None] | None = None
        self.flow: Flow | None = None
        self.started = False
        self.finished = False
        self._framing = EMPTY
        self._head = b""
        self._left = 0

    @property
    def gone(self) -> bool:
        """The client's connection is lost: nothing that is written now arrives."""
        return self._wire.lost

    @property
    def paused(self) -> bool:
        """The client's send buffer is full: who becomes `flow` now has missed that call of `pause`."""
        return self._wire.paused

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]] | bytes, body: bytes) -> None:
        """Send a whole answer in one write; `headers` are pairs or ready lines, without content-length."""
        lines = headers if isinstance(headers, bytes) else b"".join([b"%b: %b\r\n" % pair for pair in headers])
        self._open(status, lines, len(body))
        self.end(body)

    def refuse(self, refusal: Refusal) -> None:
        """Give a refusal instead of an answer that has not begun, and stop whoever works on it."""
        if not self.started:
            self.keep_alive = False
            task = self.task
            self.respond(*refusal)
            if task is not None:
                task.cancel()

    def start(self, status: int, headers: bytes, length: int | None) -> None:
        """Begin an answer with ready header lines. The head leaves with the first write, or by itself a moment later."""
        self._open(status, headers, length)
        if not self._wire.lost:
            asyncio.get_running_loop().call_soon(self._flush_head)

    def write(self, data: bytes) -> None:
        """Send a piece of the body, framed as the head promised."""
        framing = self._framing
        if not data or not framing or self.finished or self._wire.lost:
            return
        if framing == CHUNKED:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        else:
            self._left -= len(data)
        if self._head:
            data = self._head + data
            self._head = b""
        self._wire.transport.write(data)

    def end(self, data: bytes = b"") -> None:
        """Send the last piece of the body, if any, and complete the answer."""
        if self.finished:
            return
        framing = self._framing
        if framing == CHUNKED:
            data = b"%x\r\n%b\r\n%b" % (len(data), data, LAST_CHUNK) if data else LAST_CHUNK
        elif framing == EMPTY:
            data = b""
        elif framing == LENGTH and self._left != len(data):
            self.abort()
            return
        self.finished = True
        if self._wire.lost:
            return
        data = self._head + data
        self._head = b""
        if data:
            self._wire.transport.write(data)
        self._wire.ended(self)

    def abort(self) -> None:
        """Break off visibly: close the connection without completing the answer. What was written still leaves."""
        if self.finished:
            return
        self.finished = True
        if not self._wire.lost:
            self._flush_head()
            self._wire.broke(self)

    async def flushed(self) -> None:
        """Return once the client's last byte is handed to the kernel, or the client has left."""
        await self._wire.drained()

    @property
    def ends_by_close(self) -> bool:
        """The client takes the closing of the connection for the end of the answer."""
        return self._framing == CLOSE

    def _open(self, status: int, headers: bytes, length: int | None) -> None:
        if self.started:
            raise RuntimeError("this exchange has an answer already")
        self.started = True
        self._framing = self._choose_framing(status, length)
        self._left = length or 0
        self._head = b"%b%b%b%b\r\n" % (STATUS_LINES[status], headers, self._length_line(status, length), self._connection_line())

    def _flush_head(self) -> None:
        head = self._head
        if head and not self._wire.lost:
            self._head = b""
            self._wire.transport.write(head)

    def _choose_framing(self, status: int, length: int | None) -> int:
        if status in (204, 304) or self.method == "HEAD":
            return EMPTY
        if length is not None:
            return LENGTH
        if self.http_10:
            self.keep_alive = False
            return CLOSE
        return CHUNKED

    def _length_line(self, status: int, length: int | None) -> bytes:
        if self._framing == CHUNKED:
            return b"transfer-encoding: chunked\r\n"
        if length is None or status in (204, 304):
            return b""
        return b"content-length: %d\r\n" % length

    def _connection_line(self) -> bytes:
        if not self.keep_alive:
            return b"connection: close\r\n"
        return b"connection: keep-alive\r\n" if self.http_10 else b""
