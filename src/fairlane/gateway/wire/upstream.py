"""The engine's side of the wire: the connections to one engine, made and kept; and small pages over them.

**Keeping.** An idle connection is retired after `idle_keep_s`, sooner than any engine in use gives it up, and at once when
the engine closes it or sends something unasked. The newest idle connection is taken first, after a look at its socket:
one whose end has already arrived is not written to.

**Resting.** Some engines promise to keep a connection and close it all the same after a streamed answer (llama.cpp does).
The end comes a moment after the answer, and a request sent in between is lost. So a connection first rests for `rest_s`,
until one has survived that after an answer of the same kind; where one is closed in that time, none is kept any more.

**Repeating.** A request may have been executed as soon as one byte of it was written, and a POST to an engine is not
idempotent (RFC 9110, 9.2.2). So nothing here repeats one, and its sender is told in `Sink.failed(why, unsent)` the only
case in which a repeat is safe: `unsent` is true when the connection was closed before anything was written to it. A connection
that dies silently *after* the write is an ordinary failure, kept alive before or not: an engine that closed an
idle connection in that very moment (RFC 9112, 9.3.1) looks the same as one that read the request and broke down. Retiring
early is what makes this rare.
"""

import asyncio
import errno
import socket
import ssl
from time import monotonic

from fairlane.engines.address import place
from fairlane.errors import FairlaneError
from fairlane.gateway.wire.connection import CLOCK_S, Sink, UpstreamConnection
from fairlane.gateway.wire.response import AnswerHead, Headers, HeadMemory

__all__ = ["AnswerHead", "ConnectFailed", "EnginePool", "Headers", "Sink", "UpstreamConnection", "fetch"]

REST_S = 0.05  # an engine that closes after its answer has done so by then
IDLE_KEEP_S = 1.5  # engines give up idle connections after 2 s (a strict proxy) or 5 s (uvicorn, llama.cpp)


class ConnectFailed(FairlaneError):
    """No connection to the engine: `why` is refused, timeout, dns, tls or OUT_OF_DESCRIPTORS."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


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
        server_name: str | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.authority = authority or place(host, port)
        self.connect_s = connect_s
        self.idle_keep_s = idle_keep_s
        self.rest_s = rest_s
        self.connected = 0  # connections ever made
        self._tls = tls
        self._server_name = (server_name or host) if tls is not None else None  # whose certificate it has to show
        self._loop = asyncio.get_running_loop()
        self._idle: dict[UpstreamConnection, None] = {}  # oldest first
        self._open: set[UpstreamConnection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.heads = HeadMemory()
        self._survived: set[bool] = set()  # kinds of answers (streamed or not) after which a connection stayed open
        self._hung_up: set[bool] = set()  # kinds after which one was closed at once

    @property
    def open_connections(self) -> int:
        """How many connections exist, idle or busy."""
        return len(self._open)

    def acquire(self) -> UpstreamConnection | None:
        """Take the newest idle connection that is still usable; None: call `connect`."""
        idle = self._idle
        if not idle:
            return None
        now = monotonic()
        while idle:
            connection = next(reversed(idle))
            if not self._may_carry(connection, now):
                connection = next(iter(idle))  # the one that has rested longest
                if not self._may_carry(connection, now):
                    return None
            del idle[connection]
            rested_s = now - connection.idle_since
            if rested_s < self.idle_keep_s:
                if connection.is_usable():
                    if rested_s >= self.rest_s:
                        self._survived.add(connection.streamed)
                    return connection
                self.hung_up(connection)
            connection.abort()
        return None

    def _may_carry(self, connection: UpstreamConnection, now: float) -> bool:
        """Whether it has rested, or need not."""
        return connection.streamed in self._survived or now - connection.idle_since >= self.rest_s

    async def connect(self) -> UpstreamConnection:
        """Open a connection within `connect_s`, or raise `ConnectFailed`."""
        connection = UpstreamConnection(self)
        try:
            async with asyncio.timeout(self.connect_s):
                await self._loop.create_connection(
                    lambda: connection, self.host, self.port, ssl=self._tls, server_hostname=self._server_name
                )
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

    def opened(self, connection: UpstreamConnection) -> None:
        """Know a connection from its first moment on."""
        self._open.add(connection)

    def release(self, connection: UpstreamConnection) -> None:
        """Keep a connection whose answer is complete."""
        if self._closed or connection.streamed in self._hung_up:
            connection.abort()
            return
        connection.idle_since = connection.heard_at
        self._idle[connection] = None
        if self._timer is None:
            self._timer = self._loop.call_later(self.idle_keep_s, self._retire)

    def forget(self, connection: UpstreamConnection) -> None:
        """Drop a closed connection."""
        self._open.discard(connection)
        self._idle.pop(connection, None)

    def hung_up(self, connection: UpstreamConnection) -> None:
        """The engine closed a connection that it had promised to keep: idle, or written to already."""
        if monotonic() - connection.idle_since < 2 * self.rest_s:
            (self._survived.discard if connection.streamed in self._survived else self._hung_up.add)(connection.streamed)

    def _retire(self) -> None:
        """Close what has been idle for too long, and look again when the next one will have been."""
        self._timer = None
        now = monotonic()
        for connection in list(self._idle):
            left = connection.idle_since + self.idle_keep_s - now
            if left > 0:
                self._timer = self._loop.call_later(left + CLOCK_S, self._retire)
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


class _Page:
    """A sink that keeps a bounded answer for a task that waits for it."""

    __slots__ = ("_connection", "_limit", "_status", "_text", "answer")

    def __init__(self, connection: UpstreamConnection, limit: int) -> None:
        self._connection: UpstreamConnection | None = connection
        self._limit = limit
        self._status = 0
        self._text = bytearray()
        self.answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

    def begin(self, head: AnswerHead, length: int | None, data: bytes, last: bool) -> None:  # noqa: ARG002, FBT001 - a sink's
        self._status = head.status
        self.more(data, b"", last)

    def more(self, data: bytes, framed: bytes, last: bool) -> None:  # noqa: ARG002, FBT001 - a sink's
        self._text += data
        if last:
            self._connection = None
        if len(self._text) > self._limit:
            self.abandon()
            self._settle((0, b""))
        elif last:
            self._settle((self._status, bytes(self._text)))

    def failed(self, why: str, unsent: bool) -> None:  # noqa: ARG002, FBT001 - a sink's
        self._connection = None
        self._settle((0, b""))

    def abandon(self) -> None:
        """Close the connection, unless the answer is complete and it belongs to the pool again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def _settle(self, answer: tuple[int, bytes]) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


async def fetch(pool: EnginePool, path: str, headers: bytes = b"", *, limit: int = 1 << 20, timeout_s: float = 5.0) -> tuple[int, bytes]:
    """GET a small page of an engine: (status, body), or (0, b"") where it was not reached or the page is too large.

    A GET may be repeated, so a kept connection that turns out to be dead is tried again once, on a new one.
    """
    request = b"GET %b HTTP/1.1\r\nhost: %b\r\naccept: */*\r\n%b\r\n" % (path.encode(), pool.authority.encode(), headers)
    try:
        async with asyncio.timeout(timeout_s):
            kept = pool.acquire()
            answer = await _get(kept, request, limit, timeout_s) if kept is not None else (0, b"")
            return answer if answer[0] else await _get(await pool.connect(), request, limit, timeout_s)
    except (ConnectFailed, TimeoutError):
        return 0, b""


async def _get(connection: UpstreamConnection, request: bytes, limit: int, timeout_s: float) -> tuple[int, bytes]:
    page = _Page(connection, limit)
    connection.send(request, page, timeout_s, timeout_s)
    try:
        return await page.answer
    finally:
        page.abandon()
