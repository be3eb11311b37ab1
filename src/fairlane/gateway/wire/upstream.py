"""The engine's side of the wire: kept-alive HTTP/1.1 connections whose answers arrive by callback.

**Keeping.** An idle connection is retired after `idle_keep_s`, sooner than any engine in use gives it up, and at once when
the engine closes it or sends something unasked. The newest idle connection is taken first, after a look at its socket:
one whose end has already arrived is not written to.

**Resting.** Some engines promise to keep a connection and close it all the same after a streamed answer (llama.cpp does).
The end comes a moment after the answer, and a request sent in between is lost. So a connection first rests for `rest_s`,
until one has survived that after an answer of the same kind; where one is closed in that time, none is kept any more.

**Repeating.** A request may have been executed as soon as one byte of it was written, and a POST to an engine is not
idempotent (RFC 9110, 9.2.2). So this module never repeats one, and tells its caller in `Sink.failed(why, unsent)` the only
case in which a repeat is safe: `unsent` is true when the connection was closed before anything was written to it. A connection
that dies silently *after* the write is an ordinary failure, kept alive before or not: an engine that closed an
idle connection in that very moment (RFC 9112, 9.3.1) looks the same as one that read the request and broke down. Retiring
early is what makes this rare.
"""

import asyncio
import errno
import select
import socket
import ssl
from typing import Protocol, cast

from fairlane.errors import FairlaneError
from fairlane.gateway.wire.response import Headers, ResponseReader

__all__ = ["ConnectFailed", "EnginePool", "Headers", "Sink", "UpstreamConnection", "fetch"]

CLOCK_S = 0.002  # the loop's clock counts milliseconds
REST_S = 0.05  # an engine that closes after its answer has done so by then
IDLE_KEEP_S = 1.5  # engines give up idle connections after 2 s (a strict proxy) or 5 s (uvicorn, llama.cpp)


class ConnectFailed(FairlaneError):
    """No connection to the engine: `why` is refused, timeout, dns, tls or OUT_OF_DESCRIPTORS."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Sink(Protocol):
    """Takes one answer. Exactly one of `ended` and `failed` is called, and nothing after it, nor after `abort`."""

    def head(self, status: int, headers: Headers, length: int | None) -> None:
        """The final status and the headers, as they came; `length` is None where the end is told otherwise."""

    def body(self, data: bytes, last: bool) -> None:  # noqa: FBT001 - a call for each piece: positional is faster
        """The payload of one arrival, without framing. `last`: the answer is complete with it, and `ended` follows."""

    def ended(self) -> None:
        """The answer is complete; its connection is idle again, or closed."""

    def failed(self, why: str, unsent: bool) -> None:  # noqa: FBT001 - see body
        """The answer will not be complete: reset, closed or garbage. `unsent`: nothing of the request was written."""


class EnginePool:
    """The connections to one engine. It does not limit their number: whoever asks holds a place already."""

    def __init__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        *,
        connect_s: float = 5.0,
        idle_keep_s: float = IDLE_KEEP_S,
        rest_s: float = REST_S,
        authority: str | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.authority = authority or (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        self.connect_s = connect_s
        self.idle_keep_s = idle_keep_s
        self.rest_s = rest_s
        self.connected = 0  # connections ever made
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._idle: dict[UpstreamConnection, None] = {}  # oldest first
        self._open: set[UpstreamConnection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._survived: set[bool] = set()  # kinds of answers (streamed or not) after which a connection stayed open
        self._hung_up: set[bool] = set()  # kinds after which one was closed at once

    @property
    def open_connections(self) -> int:
        """How many connections exist, idle or busy."""
        return len(self._open)

    def acquire(self) -> "UpstreamConnection | None":
        """Take the newest idle connection that is still usable; None: call `connect`."""
        now = self._loop.time()
        while self._idle:
            connection = next(reversed(self._idle))
            if not self._may_carry(connection, now):
                connection = next(iter(self._idle))  # the one that has rested longest
                if not self._may_carry(connection, now):
                    return None
            del self._idle[connection]
            if now - connection.idle_since < self.idle_keep_s and connection.is_usable():
                if now - connection.idle_since >= self.rest_s:
                    self._survived.add(connection.streamed)
                return connection
            connection.abort()
        return None

    def _may_carry(self, connection: "UpstreamConnection", now: float) -> bool:
        """Whether it has rested, or need not."""
        return connection.streamed in self._survived or now - connection.idle_since >= self.rest_s

    async def connect(self) -> "UpstreamConnection":
        """Open a connection within `connect_s`, or raise `ConnectFailed`."""
        connection = UpstreamConnection(self)
        try:
            async with asyncio.timeout(self.connect_s):
                await self._loop.create_connection(lambda: connection, self.host, self.port, ssl=self._tls)
        except asyncio.CancelledError:
            connection.abort()  # the loop closes what there is of it, but does not tell
            raise
        except (OSError, UnicodeError) as error:
            connection.abort()
            raise ConnectFailed(_why(error)) from None
        if self._closed:
            connection.abort()
            raise ConnectFailed("refused")
        self.connected += 1
        return connection

    def close(self) -> None:
        """Close every connection at once, busy ones too: their sinks are told."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in list(self._open):
            connection.close()

    # What connections tell.

    def opened(self, connection: "UpstreamConnection") -> None:
        """Know a connection from its first moment on."""
        self._open.add(connection)

    def release(self, connection: "UpstreamConnection") -> None:
        """Keep a connection whose answer is complete."""
        if self._closed or connection.streamed in self._hung_up:
            connection.abort()
            return
        connection.idle_since = self._loop.time()
        self._idle[connection] = None
        if self._timer is None:
            self._timer = self._loop.call_later(self.idle_keep_s, self._retire)

    def forget(self, connection: "UpstreamConnection") -> None:
        """Drop a closed connection."""
        self._open.discard(connection)
        self._idle.pop(connection, None)

    def hung_up(self, connection: "UpstreamConnection") -> None:
        """The engine closed a connection that it had promised to keep: idle, or written to already."""
        if self._loop.time() - connection.idle_since < 2 * self.rest_s:
            (self._survived.discard if connection.streamed in self._survived else self._hung_up.add)(connection.streamed)

    def _retire(self) -> None:
        """Close what has been idle for too long, and look again when the next one will have been."""
        self._timer = None
        retired = self._loop.time() - self.idle_keep_s
        for connection in list(self._idle):
            if connection.idle_since > retired:
                self._timer = self._loop.call_at(connection.idle_since + self.idle_keep_s + CLOCK_S, self._retire)
                return
            connection.abort()


OUT_OF_DESCRIPTORS = "no free file descriptor here"
_HERE = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS}


def _why(error: Exception) -> str:
    """Name what kept a connection from being made; a host that cannot even be encoded is no name."""
    if isinstance(error, OSError) and error.errno in _HERE:
        return OUT_OF_DESCRIPTORS
    kinds = (TimeoutError, "timeout"), (socket.gaierror, "dns"), (UnicodeError, "dns"), (ssl.SSLError, "tls")
    return next((why for kind, why in kinds if isinstance(error, kind)), "refused")


class UpstreamConnection(asyncio.Protocol):
    """One connection to an engine: a request out, its answer into a `Sink`, one at a time. Not for HEAD."""

    __slots__ = ("_head_due", "_poll", "_pool", "_reader", "_sink", "_transport", "idle_since", "streamed")

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool
        self._reader = ResponseReader()
        self._transport: asyncio.Transport | None = None
        self._poll = select.poll()
        self._sink: Sink | None = None
        self._head_due = False
        self.idle_since = 0.0
        self.streamed = False  # whether its last answer was

    def send(self, request: bytes, sink: Sink) -> None:
        """Write a whole request; its answer goes to `sink`, which is told at once where the connection is closed already."""
        transport = self._transport
        if transport is None or transport.is_closing():
            sink.failed("closed", True)
            return
        self._sink = sink
        self._head_due = True
        transport.write(request)

    def abort(self) -> None:
        """Close at once and tell no one: the engine sees its peer leave and stops working."""
        self._sink = None
        self._pool.forget(self)
        if self._transport is not None:
            self._transport.abort()

    def close(self, why: str = "closed") -> None:
        """Close at once; a running answer has failed."""
        sink = self._sink
        self.abort()
        if sink is not None:
            sink.failed(why, False)

    def pause(self) -> None:
        """Stop reading: the engine is slowed by TCP."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._transport is not None:
            self._transport.resume_reading()

    def is_usable(self) -> bool:
        """Tell whether an idle connection is open and silent: a readable socket means its end, or bytes nobody asked for."""
        return self._transport is not None and not self._transport.is_closing() and not self._poll.poll(0)

    # What the transport tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport and its socket."""
        self._transport = transport = cast("asyncio.Transport", transport)
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN | select.POLLRDHUP)
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        """Hand one arrival on: the head if it became complete, then all the payload in one piece."""
        sink = self._sink
        if sink is None:
            self.abort()
            return
        reader = self._reader
        if not reader.feed(data):
            self.close("garbage")
            return
        if self._head_due:
            if not reader.status:
                return
            self._head_due = False
            sink.head(reader.status, reader.headers, reader.length)
        pieces = reader.pieces
        if pieces and self._sink is sink:
            piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            sink.body(piece, reader.complete)
        if reader.complete and self._sink is sink:
            self._finish(sink)

    def eof_received(self) -> None:
        """Let the transport close."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell a waiting sink: the end, where the answer was to last until closing, else a failure."""
        self._transport = None
        if self.idle_since and not self._reader.status:
            self._pool.hung_up(self)
        self._pool.forget(self)
        sink, self._sink = self._sink, None
        if sink is None:
            return
        if exc is None and self._reader.status and self._reader.until_close:
            sink.ended()
        else:
            sink.failed("closed" if exc is None else "reset", False)

    def _finish(self, sink: Sink) -> None:
        self._sink = None
        transport = self._transport
        if self._reader.keep and transport is not None and not transport.is_closing():
            self.streamed = self._reader.length is None
            self._reader.reset()
            transport.resume_reading()
            self._pool.release(self)
        else:
            self.abort()
        sink.ended()


class _Gathering:
    """A sink that keeps a bounded answer for a task that waits for it."""

    __slots__ = ("_connection", "_limit", "_size", "done", "pieces", "status")

    def __init__(self, connection: UpstreamConnection, limit: int) -> None:
        self._connection = connection
        self._limit = limit
        self._size = 0
        self.status = 0
        self.pieces: list[bytes] = []
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def head(self, status: int, headers: Headers, length: int | None) -> None:  # noqa: ARG002 - a sink's signature
        self.status = status

    def body(self, data: bytes, last: bool) -> None:  # noqa: ARG002, FBT001 - a sink's signature
        self._size += len(data)
        self.pieces.append(data)
        if self._size > self._limit:
            self._connection.close()

    def ended(self) -> None:
        self._settle(complete=True)

    def failed(self, why: str, unsent: bool) -> None:  # noqa: ARG002, FBT001 - a sink's signature
        self._settle(complete=False)

    def _settle(self, *, complete: bool) -> None:
        if not self.done.done():
            self.done.set_result(complete)


async def fetch(pool: EnginePool, path: str, headers: bytes = b"", *, limit: int = 1 << 20, timeout_s: float = 5.0) -> tuple[int, bytes]:
    """GET a small page of an engine: (status, body), or (0, b"") where it was not reached or the page is too large.

    A GET may be repeated, so a kept connection that turns out to be dead is tried again once, on a new one.
    """
    request = b"GET %b HTTP/1.1\r\nhost: %b\r\naccept: */*\r\n%b\r\n" % (path.encode(), pool.authority.encode(), headers)
    try:
        async with asyncio.timeout(timeout_s):
            kept = pool.acquire()
            answer = await _get(kept, request, limit) if kept is not None else (0, b"")
            return answer if answer[0] else await _get(await pool.connect(), request, limit)
    except (ConnectFailed, TimeoutError):
        return 0, b""


async def _get(connection: UpstreamConnection, request: bytes, limit: int) -> tuple[int, bytes]:
    sink = _Gathering(connection, limit)
    connection.send(request, sink)
    complete = False
    try:
        complete = await sink.done
    finally:
        if not sink.done.done() or sink.done.cancelled():
            connection.abort()
    return (sink.status, b"".join(sink.pieces)) if complete else (0, b"")
