"""Passes an engine's answer to the client, piece by piece, by callback.

**Nothing too early.** A head is sent when it is certain: that of an event stream only with the first complete data event,
and where that event is an error object (some engines say "queue full" in a 200) it becomes an ordinary answer with a status
of its own. A failure before the head leaves the client's exchange untouched, for the caller to answer.

**Nothing false.** After a failure in the middle the client never sees a proper end: an event stream gets an error event where
one can be put in, and every transfer breaks off without its last chunk or byte.

**Nothing extra.** Of the headers what `response.py` lets through; the body is passed as it came, encoding included. Chunks that
came whole are passed in the engine's framing.

**Slowly where the client is slow.** A full send buffer stops reading from the engine. Whoever reads nothing for too long is
dropped by the client's side of the wire.
"""

import re
from collections import deque
from collections.abc import Callable
from json import JSONDecoder
from typing import Any

import orjson

from fairlane.gateway.wire.exchange import Exchange
from fairlane.gateway.wire.sse import StreamMeter, UsageFilter, find_usage
from fairlane.gateway.wire.upstream import AnswerHead, UpstreamConnection

JSON = b"content-type: application/json\r\n"
TAIL_BYTES = 64 * 1024  # of a plain body, kept to find the usage in it
PROGRESS_EVENTS = 32  # between two reports of progress
HOLD_BYTES = 1024 * 1024  # of an event stream, kept back until its first data event is complete

BROKEN_OFF = (
    b'data: {"error":{"message":"The engine broke off in the middle of its answer.","type":"server_error","param":null,'
    b'"code":"engine_failed"}}\n\n'
)

_UNTOLD = (
    b'{"error":{"message":"The engine answered with an error that cannot be told.","type":"server_error","param":null,'
    b'"code":"engine_failed"}}'
)
_NO_ANSWERS = frozenset((204, 205, *range(300, 400)))  # statuses that no engine answers a request with; a redirect is not followed
_LAST_USAGE = re.compile(rb'.*"usage"\s*:\s*(?=\{)', re.DOTALL)
_DECODER = JSONDecoder()


class Relay:
    """One answer on its way, the sink of the engine and the flow of the client; its attributes tell what became of it.

    `on_over` is called once, when the engine's part is over: its connection is back in the pool or closed then, and the last that
    the client gets is written, though perhaps not sent. The attributes are filled in as things happen, so they are right
    after `abandon` too. `status` is 0 until the client was sent a head. `failure` is reset, closed, garbage or timeout; nothing
    was sent to the client where `started` is false then. `unsent`: nothing of the request was written, so it may be sent
    again on another connection. `refused`: the engine's stream began with an error object, which was given to the client as an
    ordinary answer with that `status`. `full`: the engine answered with `full_status`, in whichever of these ways, and the
    client was told nothing of it. `events` are the output events of a stream; `on_progress`, where it is set, is told of
    the first and then now and then. `slowed`: the client was slow, so how long it took says nothing of the engine.
    `first_byte_at` is the time, by `time.monotonic`, of the first data event, or of a plain answer's head.
    """

    __slots__ = (
        "_attached",
        "_connection",
        "_exchange",
        "_extra_headers",
        "_filter",
        "_first_byte_s",
        "_full_status",
        "_held",
        "_idle_s",
        "_meter",
        "_on_over",
        "_report_at",
        "_stream",
        "_tail",
        "_unsent_head",
        "completed",
        "failure",
        "first_byte_at",
        "full",
        "on_progress",
        "refused",
        "slowed",
        "status",
        "unsent",
        "usage",
    )

    def __init__(
        self,
        exchange: Exchange,
        connection: UpstreamConnection,
        extra_headers: Callable[[int], bytes],
        on_over: Callable[["Relay"], None],
        *,
        first_byte_s: float,
        idle_s: float,
        stream: bool,
        hide_usage: bool = False,
        full_status: int = 0,
    ) -> None:
        self.status = 0
        self.completed = False
        self.failure: str | None = None
        self.unsent = False
        self.refused = False
        self.full = False
        self.slowed = False
        self.usage: dict[str, Any] | None = None
        self.first_byte_at: float | None = None
        self.on_progress: Callable[[int], None] | None = None
        self._report_at = 1  # events
        self._exchange = exchange
        self._connection = connection
        self._attached = True  # the connection is ours, up to the engine's last byte
        self._extra_headers = extra_headers
        self._on_over: Callable[[Relay], None] | None = on_over
        self._first_byte_s = first_byte_s
        self._idle_s = idle_s
        self._full_status = full_status
        self._stream = stream
        self._filter = UsageFilter() if hide_usage else None
        self._meter: StreamMeter | None = None
        self._tail: _Tail | None = None
        self._unsent_head = b""  # of an event stream whose first event is awaited

    @property
    def started(self) -> bool:
        """The client was sent a head."""
        return self.status != 0

    @property
    def events(self) -> int:
        """How many events with output have passed."""
        return 0 if self._meter is None else self._meter.events

    def start(self, request: bytes) -> None:
        """Send `request` to the engine, and its answer to the client when it comes; `on_over` may be called at once.

        Within `first_byte_s` the head must come, and the first event of a stream; `idle_s` is the longest silence
        after it.
        """
        exchange = self._exchange
        if exchange.flow is self or not self._attached:
            raise RuntimeError("this relay was started before")
        exchange.flow = self
        self._connection.send(request, self, self._first_byte_s, self._idle_s)
        if exchange.paused:
            self.pause()

    def abandon(self) -> None:
        """Nobody wants the answer any more: close the engine's connection at once, and do not call `on_over`."""
        if self._on_over is not None:
            self._on_over = None
            self._leave()

    # What the engine sends.

    def begin(self, head: AnswerHead, length: int | None, data: bytes, last: bool) -> None:  # noqa: FBT001 - a sink's signature
        """Start the client's answer, or hold the head of an event stream back."""
        self._attached = not last
        status = head.status
        if status in _NO_ANSWERS:
            self._detach()
            self.failed("garbage", unsent=False)
            return
        if status == self._full_status:
            self._turn_back()
            return
        if self._stream and head.events:
            self._meter = StreamMeter()
            self._unsent_head = head.lines + head.unbuffered
            self._held = bytearray()
        elif last and length is not None:
            self._answer(status, head.lines, data)
            return
        else:
            self._open(status, head.lines, length)
            if status == 200:
                self._tail = _Tail()
        if data or last:
            self.more(data, b"", last)

    def more(self, data: bytes, framed: bytes, last: bool) -> None:  # noqa: FBT001 - a sink's signature
        """Pass one piece on."""
        self._attached = not last
        meter = self._meter
        if meter is not None:
            meter.feed(data)
            if self._unsent_head:
                if not self._may_open(meter, data, last=last):
                    return
                data, framed = self._take_held(), b""
            if meter.events >= self._report_at:
                self._report(meter.events)
            if self._filter is not None:
                shown = self._shown(self._filter, data, last=last)
                if shown is not data:
                    data, framed = shown, b""
        elif self._tail is not None:
            self._tail.keep(data)
        exchange = self._exchange
        if last:
            exchange.end(data)
            self._complete()
        elif framed and exchange.chunked:
            exchange.pass_framed(framed)
        else:
            exchange.write(data)

    def failed(self, why: str, unsent: bool) -> None:  # noqa: FBT001 - a sink's signature
        """Break the client's answer off, if it has begun; else leave it to the caller."""
        self._attached = False
        if self._on_over is None:
            return
        self.failure = why
        self.unsent = unsent
        exchange = self._exchange
        if exchange.started:
            if self._meter is not None and self._meter.between_events:
                exchange.write(BROKEN_OFF)
            exchange.abort()
        self._end()

    def _answer(self, status: int, lines: bytes, body: bytes) -> None:
        """Give the client an answer that came whole."""
        lines += self._extra_headers(status)
        self.first_byte_at = self._connection.heard_at
        self._exchange.respond(status, lines, body)
        self.status = status
        if status == 200:
            self.usage = _usage_of(body)
        self.completed = True
        self._end()

    def _open(self, status: int, lines: bytes, length: int | None) -> None:
        """Begin the client's answer."""
        lines += self._extra_headers(status)
        connection = self._connection
        self.first_byte_at = connection.heard_at
        if self._attached:
            connection.limit_s = self._idle_s
        self._exchange.start(status, lines, length)
        self.status = status

    def _may_open(self, meter: StreamMeter, data: bytes, *, last: bool) -> bool:
        """Hold a piece back until the first data event is complete, and then begin, or turn an error into an answer."""
        self._held += data
        if meter.error is not None:
            self._refuse(meter.error)
            return False
        if not (meter.begun or last or len(self._held) > HOLD_BYTES):
            return False
        self._open(200, self._unsent_head, None)
        self._unsent_head = b""
        return True

    def _take_held(self) -> bytes:
        held = bytes(self._held)
        self._held.clear()
        return held

    def _refuse(self, error: dict[str, Any]) -> None:
        """Answer with the engine's error object; the rest of its stream is not wanted."""
        self._detach()
        status = _error_status(error)
        if status == self._full_status:
            self._turn_back()
            return
        lines = JSON + self._extra_headers(status)
        self.refused = True
        self._exchange.respond(status, lines, _rewritten(error))
        self.status = status
        self._end()

    def _turn_back(self) -> None:
        """Tell only the caller that the engine is full: the client's request may be tried again."""
        self.full = True
        self._end()

    @staticmethod
    def _shown(usage_filter: UsageFilter, data: bytes, *, last: bool) -> bytes:
        """The piece without the usage that only the gateway asked for."""
        shown = usage_filter.feed(data)
        return shown + usage_filter.rest() if last else shown

    def _report(self, events: int) -> None:
        self._report_at = events + PROGRESS_EVENTS
        if self.on_progress is not None:
            self.on_progress(events)

    # What the client's side tells.

    def pause(self) -> None:
        """The client is slow."""
        self.slowed = True
        if self._attached:
            self._connection.pause()

    def resume(self) -> None:
        """The client has caught up; its slowness was no silence of the engine."""
        if self._attached:
            self._connection.resume()

    # The end.

    def _complete(self) -> None:
        self.completed = True
        if self._tail is not None:
            self.usage = self._tail.usage()
        self._end()

    def _end(self) -> None:
        """The engine's part is over."""
        self._leave()
        on_over, self._on_over = self._on_over, None
        if on_over is not None:
            on_over(self)

    def _leave(self) -> None:
        """Let go of both sides; an answer that is still running is stopped."""
        self._exchange.flow = None
        self._detach()
        if self._meter is not None:
            self.usage = self._meter.usage

    def _detach(self) -> None:
        if self._attached:
            self._attached = False
            self._connection.abort()


class _Tail:
    """The end of a plain body that comes in pieces: its usage stands there."""

    __slots__ = ("_cut", "_pieces", "size")

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._cut = False
        self.size = 0

    def keep(self, data: bytes) -> None:
        """Take the next piece, and drop what is too far from the end by now."""
        self._pieces.append(data)
        self.size += len(data)
        while self.size - len(self._pieces[0]) >= TAIL_BYTES:
            self.size -= len(self._pieces.popleft())
            self._cut = True

    def usage(self) -> dict[str, Any] | None:
        """The usage object of the body."""
        tail = b"".join(self._pieces)
        return _last_usage(tail[-TAIL_BYTES:]) if self._cut else _usage_of(tail)


def _usage_of(body: bytes) -> dict[str, Any] | None:
    """Read the usage out of a JSON body: a short one is parsed, of a long one the last usage object."""
    if b'"usage"' not in body:
        return None
    if len(body) > TAIL_BYTES:
        return _last_usage(body[-TAIL_BYTES:])
    try:
        return find_usage(orjson.loads(body))
    except orjson.JSONDecodeError:
        return None


def _last_usage(tail: bytes) -> dict[str, Any] | None:
    """Read the last usage object in the end of a long JSON text."""
    match = _LAST_USAGE.match(tail)
    if match is None:
        return None
    try:
        usage, _ = _DECODER.raw_decode(tail[match.end() :].decode("utf-8", "replace"))
    except (ValueError, RecursionError):  # a number may have too many digits
        return None
    return usage if isinstance(usage, dict) else None


def _rewritten(error: dict[str, Any]) -> bytes:
    """The error object as JSON; what can be read may be nested too deep to be written."""
    try:
        return orjson.dumps(error)
    except TypeError:
        return _UNTOLD


def _error_status(event: dict[str, Any]) -> int:
    """Read the HTTP status that an engine's error object claims; 502 where it claims none. TGI has a word for being full."""
    if event.get("error_type") == "overloaded":
        return 429
    error = event.get("error")
    code = error.get("code", event.get("code")) if isinstance(error, dict) else event.get("code")
    return code if isinstance(code, int) and 400 <= code <= 599 else 502
