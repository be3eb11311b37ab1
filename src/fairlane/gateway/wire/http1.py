"""The client's side of the wire: HTTP/1.1 on an asyncio transport, a plain call for each request.

Reading. One request at a time is answered; what a client sends meanwhile is held back unparsed up to a bound, then
reading stops. Requests that arrived in one piece may be parsed ahead, a few, and are answered in order.

Refusing. Where the client may still be sending what nobody reads, the connection answers, reads on without looking for a
short while, so that a reset does not destroy the answer on its way, and closes.

Writing. What is written goes to the kernel at once. Where the kernel does not take it all the connection is *behind* until the
last byte has left; the source of an answer is paused if much is waiting, and goes on when nothing is.

Waiting. A connection owns at most one timer. It is not moved for each packet: when it fires, it looks at the time by
which something had to happen, and sleeps again if that moved.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import cast

from fairlane.errors import RULES, Reason
from fairlane.gateway.wire.exchange import Exchange, Head
from fairlane.gateway.wire.reader import Early, Intake, OnError, Render, RequestReader

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
HELD_BYTES = 64 * 1024  # pipelined bytes kept while a request runs; beyond it reading stops
DISCARD_BYTES = 64 * 1024 * 1024  # what a connection swallows unread at most
LINGER_S = 2.0  # how long a refused client may go on sending
SEND_BUFFER_BYTES = 256 * 1024  # a client's unsent bytes before its source is paused
FAREWELL_S = 1.0  # what cut connections get to end at shutdown
CLOCK_S = 0.002  # the loop's clock counts milliseconds
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset
SPARE_CONNECTIONS = 256  # connections beyond the limit that are told so; more are cut off

Serve = Callable[[Exchange], None]


class HttpServer:
    """The limits, the callables and the open connections of one listener; `protocol` is the factory for `create_server`.

    It is made inside the running loop. `serve` answers one exchange, or gives it a worker that will. `early` sees an exchange
    without its body and may refuse it; it is not asked again where the same client sends the same head. `render(status,
    reason, message)` gives header lines and body of the refusals made here. `on_error` gets what is raised by mistake by
    `serve`, by `early`, and by workers and callbacks that are told of something.
    """

    def __init__(
        self,
        serve: Serve,
        *,
        render: Render,
        early: Early,
        on_error: OnError,
        max_body_bytes: int,
        max_connections: int,
        max_header_bytes: int = 32768,
        header_s: float = 30.0,
        body_s: float = 60.0,
        keep_alive_s: float = 75.0,
        stall_s: float = 60.0,
    ) -> None:
        self.serve = serve
        self.intake = Intake(early, render, on_error, max_body_bytes=max_body_bytes, max_header_bytes=max_header_bytes)
        self.max_connections = max_connections
        self.header_s = header_s
        self.body_s = body_s
        self.keep_alive_s = keep_alive_s
        self.stall_s = stall_s
        self.connections: set[ServerProtocol] = set()
        self.closing = False
        self.loop = asyncio.get_running_loop()
        self._all_closed: asyncio.Future[None] | None = None

    def protocol(self) -> "ServerProtocol":
        """Make the protocol of one new connection."""
        return ServerProtocol(self)

    def forget(self, connection: "ServerProtocol") -> None:
        """Drop a lost connection."""
        self.connections.discard(connection)
        if not self.connections and self._all_closed is not None and not self._all_closed.done():
            self._all_closed.set_result(None)

    async def close(self, drain_s: float) -> None:
        """Close idle connections now and the others after their present exchange; cut off what is left after `drain_s`.

        Stopping to listen is the caller's.
        """
        self.closing = True
        self._all_closed = self.loop.create_future()
        for connection in list(self.connections):
            connection.retire()
        if self.connections:
            await asyncio.wait([self._all_closed], timeout=drain_s)
        self.cut()
        if self.connections:
            await asyncio.wait([self._all_closed], timeout=FAREWELL_S)

    def cut(self) -> None:
        """Break every connection off."""
        for connection in list(self.connections):
            connection.transport.abort()


class ServerProtocol(asyncio.Protocol):
    """One client connection: runs its requests in order and closes when it is time to.

    A client that half-closes cannot be told from one that has left: the transport closes then, as protocols do by default.
    """

    __slots__ = (
        "_deadline",
        "_discarded",
        "_held",
        "_lingering",
        "_reader",
        "_server",
        "_stalled_bytes",
        "_timer",
        "_timer_at",
        "behind",
        "current",
        "flushes",
        "lost",
        "paused",
        "peer",
        "stopped",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._reader = RequestReader(server.intake, self)
        self.peer = ""
        self.current: Exchange | None = None
        self._held = bytearray()  # arrived while a request runs, not parsed yet
        self._lingering = False
        self._discarded = 0
        self.flushes: list[tuple[Exchange, Callable[[], None]]] = []
        self._stalled_bytes = 0
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.lost = self.behind = self.paused = self.stopped = False

    # What the transport tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection in, or refuse it where there are too many."""
        server = self._server
        self.transport = transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(0, 0)  # `behind` is to be exact
        server.connections.add(self)
        if len(server.connections) > server.max_connections:
            self._turn_away()
            return
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        self._watch(server.header_s)

    def data_received(self, data: bytes) -> None:
        """Parse what comes, unless a request is running or nothing more is wanted."""
        reader = self._reader
        if reader.deaf:
            self._discard(len(data))
        elif self.current is not None or self._held:
            self._hold(data)
        elif (exchange := reader.recognise(data)) is not None:
            self._begin(exchange)
        else:
            reader.feed(data)
            self._advance()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why does not matter
        """Stop the running exchange, exactly once, and let go of everything."""
        self.lost = True
        self._server.forget(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        current, self.current = self.current, None
        self._reader.complete.clear()
        self._reader.incoming = None
        self._held.clear()
        if current is not None:
            current.abandon()
        self._level()

    def pause_writing(self) -> None:
        """Note that the client reads more slowly than it is written to."""
        self.behind = True
        self._stalled_bytes = self.transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        """Let the source go on, and tell who waits for the last byte to leave."""
        paused, current = self.paused, self.current
        self._level()
        if current is not None:
            if paused and current.flow is not None:
                current.flow.resume()
        elif not self._lingering:
            self._watch(self._server.keep_alive_s)
            self._await_rest()

    def _level(self) -> None:
        """Nothing is left to be sent."""
        self.behind = self.paused = False
        flushes, self.flushes = self.flushes, []
        for exchange, callback in flushes:
            exchange.tell(callback)

    # What an exchange asks for.

    def ended(self, exchange: Exchange) -> None:
        """Go on to the next request, or close where this was the last."""
        self.current = None
        if not exchange.keep_alive:
            self._close()
            return
        if self.behind:
            self.fell_behind()  # the source of the next answer may have to wait for this one
            self._watch_sending()
        else:
            self._watch(self._server.keep_alive_s)
        reader = self._reader
        if reader.complete or self._held or reader.incoming is not None:
            self._server.loop.call_soon(self._advance)

    def broke(self, exchange: Exchange) -> None:
        """Close after what was written has left; where closing would look like the end, reset instead."""
        self.current = None
        if exchange.ends_by_close:
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.transport.abort()
        else:
            self._close()

    def fell_behind(self) -> None:
        """Have the source wait if much is waiting: the client reads more slowly than it comes."""
        if self.paused or self.transport.get_write_buffer_size() <= SEND_BUFFER_BYTES:
            return
        self.paused = True
        self._watch_sending()
        current = self.current
        if current is not None and current.flow is not None:
            current.flow.pause()

    def failed(self, exchange: Exchange, error: Exception) -> None:
        """Pass a mistake on."""
        self._server.intake.on_error(exchange, error)

    def retire(self) -> None:
        """Close now if idle, else after the present exchange."""
        if self.current is not None:
            self.current.keep_alive = False
        elif self._reader.incoming is None and not self._reader.complete:
            self._close()

    # Running.

    def _advance(self) -> None:
        """Start the next complete request; with none left, parse what was held back."""
        reader = self._reader
        while self.current is None and not self.transport.is_closing():
            if reader.complete:
                self._begin(reader.complete.pop(0))
            elif self._held and not reader.deaf:
                held = bytes(self._held)
                self._held.clear()
                self.stopped = False
                self.transport.resume_reading()
                reader.feed(held)
            else:
                self._await_rest()
                return

    def _begin(self, exchange: Exchange) -> None:
        """Serve one exchange; whatever goes wrong, the client gets an answer or sees the connection break."""
        self.current = exchange
        server = self._server
        if server.closing:
            exchange.keep_alive = False
        if exchange.refusal is not None:
            exchange.respond(*exchange.refusal)
            return
        try:
            server.serve(exchange)
        except Exception as error:  # noqa: BLE001 - the last resort of every request
            self.failed(exchange, error)
        else:
            if exchange.finished or exchange.worker is not None:
                return
        exchange.refuse(server.intake.refusal(500, Reason.INTERNAL, RULES[Reason.INTERNAL].text))

    def _await_rest(self) -> None:
        """Nothing can be started: give the client its time for the rest of a message, or for the next one."""
        reader, server = self._reader, self._server
        if reader.continue_due:
            reader.continue_due = False
            self.transport.write(CONTINUE)
        if self.behind or reader.incoming is None:
            return
        if reader.head_seen:
            self._watch(server.body_s)
        elif not reader.timed:
            reader.timed = True
            self._watch(server.header_s)

    def _hold(self, data: bytes) -> None:
        """Keep pipelined bytes for later. With too many reading stops, and only the socket knows whether the client left."""
        self._held += data
        if len(self._held) > HELD_BYTES:
            self.stopped = True
            self.transport.pause_reading()

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded <= DISCARD_BYTES:
            return
        if self.current is None:
            self.transport.close()
        else:
            self.transport.pause_reading()

    # Closing.

    def _turn_away(self) -> None:
        """Answer a connection beyond the limit without reading it; far beyond the limit cut it off."""
        server = self._server
        if len(server.connections) > server.max_connections + SPARE_CONNECTIONS:
            self.transport.abort()
            return
        self._reader.deaf = self._reader.unread = True
        exchange = Exchange(self, Head())
        exchange.refusal = server.intake.refusal(503, Reason.NO_ENGINE, "Too many connections are open.")
        self._begin(exchange)

    def _close(self) -> None:
        """Close once what was written has left. A client that may still be sending gets a while to notice the answer."""
        if self.transport.is_closing():
            return
        if self._reader.unread and not self._lingering:
            self._lingering = True
            self.transport.write_eof()
            self._watch(LINGER_S)
            return
        self._reader.deaf = True
        self.transport.close()
        self._watch_sending()

    # Waiting.

    def _watch(self, span_s: float) -> None:
        """Set the time by which the present state must have ended; the timer moves only if it would fire too late."""
        loop = self._server.loop
        self._deadline = deadline = loop.time() + span_s
        if self._timer is not None:
            if self._timer_at <= deadline:
                return
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = loop.call_at(deadline, self._check)

    def _watch_sending(self) -> None:
        """Give the client its time to take some of what is waiting."""
        self._stalled_bytes = self.transport.get_write_buffer_size()
        self._watch(self._server.stall_s)

    def _check(self) -> None:
        self._timer = None
        if self.current is not None and not self.paused:
            return  # a running request has no limit here; its end sets the next
        loop = self._server.loop
        if loop.time() + CLOCK_S < self._deadline:
            self._timer_at = self._deadline
            self._timer = loop.call_at(self._deadline, self._check)
        else:
            self._overdue()

    def _overdue(self) -> None:
        """End a connection that has not moved for as long as it may."""
        transport = self.transport
        if self.behind and transport.get_write_buffer_size() < self._stalled_bytes:
            self._watch_sending()
        elif self._reader.incoming is not None and not self.behind:
            self._reader.time_out()
            self._advance()
        elif self.behind or transport.is_closing():
            transport.abort()
        else:
            transport.close()
