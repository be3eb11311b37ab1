"""One request of a client and the answer to it: what the wire hands up, and what is written back.

An `Exchange` frames an answer (one write where it can be one), says on the wire whether the connection stays open, and
knows how to break off so that the client notices. Nothing here waits: who works on the answer is its `worker`, and is told
when nobody wants it any more; back-pressure goes the same way, through `flow`.
"""

import asyncio
import select
from collections.abc import Callable
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


class Head:
    """What a request says before its body. It never changes once the request is accepted: the next one may share it.

    Names of headers are in lower case; content-length is not among them, since the body tells its length. `owner` is whose
    request it is, as far as the wire's user has found out.
    """

    __slots__ = ("headers", "http_10", "keep_alive", "method", "owner", "path", "query", "target")

    def __init__(self) -> None:
        self.method = ""
        self.target = b""
        self.path = ""
        self.query = b""
        self.headers: dict[bytes, bytes] = {}
        self.http_10 = False
        self.keep_alive = False
        self.owner: object = None


class Worker(Protocol):
    """Who works on an answer."""

    def abandon(self) -> None:
        """The client left, or was given another answer: stop now."""


class Flow(Protocol):
    """The source of an answer, told when the client's send buffer is full and when it has room again."""

    def pause(self) -> None:
        """Stop producing."""

    def resume(self) -> None:
        """Produce again."""


class Wire(Protocol):
    """The connection as an exchange sees it."""

    transport: asyncio.Transport
    peer: str
    lost: bool
    behind: bool  # something that was written has not left yet
    paused: bool  # that is so much that the source has to wait
    stopped: bool  # nothing is read, so a client that leaves is not heard
    flushes: list[tuple["Exchange", Callable[[], None]]]  # whom to call when nothing is behind, or the connection lost

    def fell_behind(self) -> None:
        """More was written while something has not left yet: have the source wait if that is much."""

    def ended(self, exchange: "Exchange") -> None:
        """The answer is written in full."""

    def broke(self, exchange: "Exchange") -> None:
        """The answer will never be complete: close so that the client can tell."""

    def failed(self, exchange: "Exchange", error: Exception) -> None:
        """Somebody who was called made a mistake."""


class Exchange:
    """A request as it came, and the way to answer it exactly once: `respond`, or `start`, `write`..., `end`.

    `chunked` is right after `start`: the client's framing is that of HTTP/1.1 chunks. `keep_alive` is whether the connection
    outlives the exchange.
    """

    __slots__ = (
        "_framing",
        "_left",
        "_unsent_head",
        "_wire",
        "body",
        "chunked",
        "finished",
        "flow",
        "head",
        "keep_alive",
        "refusal",
        "started",
        "worker",
    )

    def __init__(self, wire: Wire, head: Head, body: bytes = b"") -> None:
        self._wire = wire
        self.head = head
        self.body = body
        self.keep_alive = head.keep_alive
        self.refusal: Refusal | None = None
        self.worker: Worker | None = None
        self.flow: Flow | None = None
        self.started = False
        self.finished = False
        self.chunked = False
        self._framing = EMPTY
        self._unsent_head = b""

    @property
    def peer(self) -> str:
        """The client's address."""
        return self._wire.peer

    @property
    def gone(self) -> bool:
        """The client has left: nothing that is written now arrives."""
        wire = self._wire
        return wire.lost or (wire.stopped and _has_left(wire.transport))

    @property
    def paused(self) -> bool:
        """The client's send buffer is full: who becomes `flow` now has missed that call of `pause`."""
        return self._wire.paused

    @property
    def ends_by_close(self) -> bool:
        """The client takes the closing of the connection for the end of the answer."""
        return self._framing == CLOSE

    def respond(self, status: int, lines: bytes, body: bytes) -> None:
        """Send a whole answer in one write; `lines` are ready header lines, without content-length."""
        head = self._compose(status, lines, len(body))
        self.finished = True
        wire = self._wire
        if not wire.lost:
            wire.transport.write(head + body if self._framing else head)
            wire.ended(self)

    def start(self, status: int, lines: bytes, length: int | None) -> None:
        """Begin an answer with ready header lines. The head leaves with the first write, or by itself a moment later."""
        self._unsent_head = self._compose(status, lines, length)
        self._left = length or 0
        asyncio.get_running_loop().call_soon(self._flush_head)

    def write(self, data: bytes) -> None:
        """Send a piece of the body, framed as the head promised."""
        if self.chunked:
            if data:
                self.pass_framed(b"%x\r\n%b\r\n" % (len(data), data))
        elif data and self._framing and not self.finished:
            self._left -= len(data)
            self.pass_framed(data)

    def pass_framed(self, data: bytes) -> None:
        """Send what is framed already: where `chunked`, whole chunks, but not the empty one that is left to `end`."""
        wire = self._wire
        if self.finished or wire.lost:
            return
        if self._unsent_head:
            data = self._unsent_head + data
            self._unsent_head = b""
        wire.transport.write(data)
        if wire.behind:
            wire.fell_behind()

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
        wire = self._wire
        if wire.lost:
            return
        data = self._unsent_head + data
        self._unsent_head = b""
        if data:
            wire.transport.write(data)
        wire.ended(self)

    def abort(self) -> None:
        """Break off visibly: close the connection without completing the answer. What was written still leaves."""
        if self.finished:
            return
        self.finished = True
        if not self._wire.lost:
            self._flush_head()
            self._wire.broke(self)

    def refuse(self, refusal: Refusal) -> None:
        """Give a refusal instead of the answer, or break off what has begun of that, and stop whoever works on it."""
        if self.started:
            self.abort()
        else:
            self.keep_alive = False
            self.respond(*refusal)
        self.abandon()

    def abandon(self) -> None:
        """Tell the worker, once, that nobody wants its answer."""
        worker, self.worker = self.worker, None
        if worker is not None:
            self.tell(worker.abandon)

    def tell(self, callback: Callable[[], None]) -> None:
        """Call somebody whose mistake must not be the wire's."""
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - as it says
            self._wire.failed(self, error)

    def when_flushed(self, callback: Callable[[], None]) -> None:
        """Call back, once, when nothing is left to be sent to the client, or it has left; at once where that is so now."""
        if self._wire.behind:
            self._wire.flushes.append((self, callback))
        else:
            callback()

    def _compose(self, status: int, lines: bytes, length: int | None) -> bytes:
        """Choose the framing and make the head of the answer."""
        if self.started:
            raise RuntimeError("this exchange has an answer already")
        self.started = True
        request, bodiless = self.head, status in (204, 304)
        line = b"" if bodiless or length is None else b"content-length: %d\r\n" % length
        if bodiless or request.method == "HEAD":
            self._framing = EMPTY
        elif length is not None:
            self._framing = LENGTH
        elif request.http_10:
            self._framing = CLOSE
            self.keep_alive = False
        else:
            self._framing = CHUNKED
            self.chunked = True
            line = b"transfer-encoding: chunked\r\n"
        if not self.keep_alive:
            line += b"connection: close\r\n"
        elif request.http_10:
            line += b"connection: keep-alive\r\n"
        return b"%b%b%b\r\n" % (STATUS_LINES[status], lines, line)

    def _flush_head(self) -> None:
        head = self._unsent_head
        if head and not self._wire.lost:
            self._unsent_head = b""
            self._wire.transport.write(head)


def _has_left(transport: asyncio.Transport) -> bool:
    """Whether the other side has closed, behind whatever it sent before."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
