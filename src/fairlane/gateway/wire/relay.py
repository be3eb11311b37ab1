"""Passes an engine's answer to the client, piece by piece, by callback: a task waits only for the end.

**Nothing too early.** A head is sent when it is certain: that of an event stream only with the first complete data event,
and where that event is an error object (some engines say "queue full" in a 200) it becomes an ordinary answer with a status
of its own. A failure before the head leaves the client's exchange untouched, for the caller to answer.

**Nothing false.** After a failure in the middle the client never sees a proper end: an event stream gets an error event where
one can be put in, and every transfer breaks off without its last chunk or byte.

**Nothing extra.** Of the headers what `headers.py` lets through; the body is passed as it came, encoding included.

**Slowly where the client is slow.** A full send buffer stops reading from the engine. Whoever reads nothing for too long is
dropped by the client's side of the wire.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable
from json import JSONDecodeError, JSONDecoder
from typing import Any

import orjson

from fairlane.gateway.wire.exchange import Exchange
from fairlane.gateway.wire.headers import is_event_stream, pass_headers
from fairlane.gateway.wire.sse import StreamMeter, UsageFilter, find_usage
from fairlane.gateway.wire.upstream import Headers, UpstreamConnection

JSON = b"content-type: application/json\r\n"
TAIL_BYTES = 64 * 1024  # of a plain body, kept to find the usage in it
CLOCK_S = 0.002  # the loop's clock counts milliseconds
PROGRESS_EVENTS = 32  # between two reports of progress
HOLD_BYTES = 1024 * 1024  # of an event stream, kept back until its first data event is complete

BROKEN_OFF = (
    b'data: {"error":{"message":"The engine broke off in the middle of its answer.","type":"server_error","param":null,'
    b'"code":"engine_failed"}}\n\n'
)

_LAST_USAGE = re.compile(rb'.*"usage"\s*:\s*(?=\{)', re.DOTALL)
_DECODER = JSONDecoder()


class Relay:
    """One answer on its way, the sink of the engine and the flow of the client; its attributes tell what became of it.

    They are filled in as things happen, so they are right after a cancellation too. `status` is 0 until the client was
    sent a head. `failure` is reset, closed, garbage or timeout; nothing was sent to the client where `started` is false then.
    `unsent`: nothing of the request was written, so it may be sent again on another connection. `refused`: the
    engine's stream began with an error object, which was given to the client as an ordinary answer with that `status`.
    `events` are the output events of a stream; `on_progress`, where it is set, is told of the first and then now and
    then. `first_byte_at` is the time, by `time.monotonic`, of the first data event, or of a plain answer's head.
    """

    __slots__ = (
        "_connection",
        "_exchange",
        "_extra_headers",
        "_filter",
        "_head",
        "_held",
        "_held_bytes",
        "_idle_s",
        "_last",
        "_limit_s",
        "_loop",
        "_meter",
        "_over",
        "_paused",
        "_report_at",
        "_stream",
        "_tail",
        "_tail_bytes",
        "_timer",
        "bytes_out",
        "completed",
        "failure",
        "first_byte_at",
        "on_progress",
        "refused",
        "status",
        "unsent",
        "usage",
    )

    def __init__(
        self,
        exchange: Exchange,
        connection: UpstreamConnection,
        extra_headers: Callable[[int], bytes],
        *,
        first_byte_s: float,
        idle_s: float,
        stream: bool,
        hide_usage: bool = False,
    ) -> None:
        self.status = 0
        self.completed = False
        self.failure: str | None = None
        self.unsent = False
        self.refused = False
        self.usage: dict[str, Any] | None = None
        self.first_byte_at: float | None = None
        self.bytes_out = 0
        self.on_progress: Callable[[int], None] | None = None
        self._report_at = 1  # events
        self._exchange = exchange
        self._connection: UpstreamConnection | None = connection
        self._extra_headers = extra_headers
        self._limit_s = first_byte_s
        self._idle_s = idle_s
        self._stream = stream
        self._filter = UsageFilter() if hide_usage else None
        self._loop = loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = loop.create_future()
        self._meter: StreamMeter | None = None
        self._head = b""  # of an event stream whose first event is awaited
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._paused = False
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def started(self) -> bool:
        """The client was sent a head."""
        return self.status != 0

    @property
    def events(self) -> int:
        """How many events with output have passed."""
        return 0 if self._meter is None else self._meter.events

    async def run(self, request: bytes) -> None:
        """Send `request` to the engine and its answer to the client; return when the engine's part is over.

        Within `first_byte_s` the head must come, and the first event of a stream; `idle_s` is the longest silence
        after it. On cancellation the engine's connection is closed at once. The client's last bytes may still be on
        their way on return: see `Exchange.flushed`.
        """
        try:
            self._begin(request)
            await self._over
        finally:
            self._leave()

    def _begin(self, request: bytes) -> None:
        """Send the request and become the source of the exchange."""
        connection = self._connection
        if connection is None:
            raise RuntimeError("this relay has run already")
        self._last = self._loop.time()
        self._timer = self._loop.call_later(min(self._limit_s, self._idle_s), self._check)
        self._exchange.flow = self
        connection.send(request, self)
        if self._exchange.paused:
            self.pause()

    def _leave(self) -> None:
        """Let go of both sides; an answer that is still running is stopped."""
        self._exchange.flow = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._disconnect()
        if self._meter is not None:
            self.usage = self._meter.usage

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    # What the engine sends.

    def head(self, status: int, headers: Headers, length: int | None) -> None:
        """Start the client's answer, or hold the head of an event stream back."""
        self._last = self._loop.time()
        events = self._stream and status == 200 and is_event_stream(headers)
        head = pass_headers(headers, unbuffered=events)
        if events:
            self._meter = StreamMeter()
            self._head = head
            return
        self._limit_s = self._idle_s
        self.first_byte_at = time.monotonic()
        self.status = status
        self._exchange.start(status, head + self._extra_headers(status), length)

    def body(self, data: bytes, last: bool) -> None:  # noqa: FBT001 - a sink's signature
        """Pass one piece on."""
        self._last = self._loop.time()
        meter = self._meter
        if meter is None:
            self._keep_tail(data)
        else:
            meter.feed(data)
            if self._head:
                self._hold(meter, data, last=last)
                return
            if meter.events >= self._report_at:
                self._report(meter.events)
            if self._filter is not None:
                data = self._shown(data, last=last)
        self.bytes_out += len(data)
        if last:
            self._exchange.end(data)
        else:
            self._exchange.write(data)

    def ended(self) -> None:
        """Complete the client's answer; the connection belongs to the pool again."""
        self._connection = None
        if self._head:
            self._open_stream(last=True)
        elif not self._exchange.finished:
            self._exchange.end(b"" if self._filter is None else self._filter.rest())
        if self._meter is None:
            self.usage = self._read_usage()
        self.completed = True
        self._settle()

    def failed(self, why: str, unsent: bool) -> None:  # noqa: FBT001 - a sink's signature
        """Break the client's answer off, if it has begun; else leave it to the caller."""
        self._connection = None
        self.failure = why
        self.unsent = unsent
        self._break_off()
        self._settle()

    # What the client's side tells.

    def pause(self) -> None:
        """The client is slow."""
        self._paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """The client has caught up; its slowness was no silence of the engine."""
        self._paused = False
        self._last = self._loop.time()
        if self._connection is not None:
            self._connection.resume()

    # The first event.

    def _hold(self, meter: StreamMeter, data: bytes, *, last: bool) -> None:
        """Keep what comes until the first data event is complete, and then pass it all, or turn an error into an answer."""
        self._held.append(data)
        self._held_bytes += len(data)
        if meter.error is not None:
            self._refuse(meter.error)
        elif meter.begun or self._held_bytes > HOLD_BYTES:
            self._open_stream(last=last)
            if meter.events:
                self._report(meter.events)

    def _shown(self, data: bytes, *, last: bool) -> bytes:
        """The piece without the usage that only the gateway asked for."""
        if self._filter is None:
            return data
        shown = self._filter.feed(data)
        return shown + self._filter.rest() if last else shown

    def _report(self, events: int) -> None:
        self._report_at = events + PROGRESS_EVENTS
        if self.on_progress is not None:
            self.on_progress(events)

    def _refuse(self, error: dict[str, Any]) -> None:
        """Answer with the engine's error object; the rest of its stream is not wanted."""
        self._disconnect()
        self.refused = True
        self.status = status = _error_status(error)
        self._exchange.respond(status, JSON + self._extra_headers(status), orjson.dumps(error))
        self._settle()

    def _open_stream(self, *, last: bool) -> None:
        exchange = self._exchange
        self._limit_s = self._idle_s
        self.first_byte_at = time.monotonic()
        self.status = 200
        exchange.start(200, self._head + self._extra_headers(200), None)
        self._head = b""
        data = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        self._held.clear()
        if self._filter is not None:
            data = self._shown(data, last=last)
        self.bytes_out += len(data)
        if last:
            exchange.end(data)
        else:
            exchange.write(data)

    # Time.

    def _check(self) -> None:
        """End a silence that has lasted too long, or look again: the timer is not moved for each piece.

        It never sleeps longer than `idle_s`, so that it is in time when that becomes the limit.
        """
        left = self._limit_s if self._paused else self._last + self._limit_s - self._loop.time()
        if left > CLOCK_S:
            self._timer = self._loop.call_later(min(left, self._idle_s), self._check)
        else:
            self._timer = None
            self._stop("timeout")

    # Endings.

    def _stop(self, why: str) -> None:
        """Close the engine's connection and break off."""
        self._disconnect()
        self.failure = why
        self._break_off()
        self._settle()

    def _break_off(self) -> None:
        exchange = self._exchange
        if not exchange.started:
            return
        if self._meter is not None and self._meter.between_events:
            exchange.write(BROKEN_OFF)
        exchange.abort()

    def _settle(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    # Usage of a plain answer.

    def _keep_tail(self, data: bytes) -> None:
        self._tail.append(data)
        self._tail_bytes += len(data)
        while self._tail_bytes - len(self._tail[0]) >= TAIL_BYTES:
            self._tail_bytes -= len(self._tail.popleft())

    def _read_usage(self) -> dict[str, Any] | None:
        """Read the usage out of a JSON body: a short one is parsed, of a long one the last usage object."""
        if self.status != 200 or not self._tail:
            return None
        tail = self._tail[0] if len(self._tail) == 1 else b"".join(self._tail)
        if b'"usage"' not in tail:
            return None
        if self.bytes_out == len(tail) <= TAIL_BYTES:
            try:
                return find_usage(orjson.loads(tail))
            except orjson.JSONDecodeError:
                return None
        return _last_usage(tail[-TAIL_BYTES:])


def _last_usage(tail: bytes) -> dict[str, Any] | None:
    """Read the last usage object in the end of a long JSON text."""
    match = _LAST_USAGE.match(tail)
    if match is None:
        return None
    try:
        usage, _ = _DECODER.raw_decode(tail[match.end() :].decode("utf-8", "replace"))
    except (JSONDecodeError, RecursionError):
        return None
    return usage if isinstance(usage, dict) else None


def _error_status(event: dict[str, Any]) -> int:
    """Read the HTTP status that an engine's error object claims; 502 where it claims none."""
    error = event.get("error")
    code = error.get("code", event.get("code")) if isinstance(error, dict) else event.get("code")
    return code if isinstance(code, int) and 400 <= code <= 599 else 502
