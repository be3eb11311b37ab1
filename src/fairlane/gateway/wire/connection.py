"""One kept-alive HTTP/1.1 connection to an engine, whose answers arrive by callback.

A connection owns at most one timer, for all its requests. It is not moved for what arrives: when it fires, it looks at how long
the engine has been silent, and sleeps again.
"""

import asyncio
import select
from time import monotonic
from typing import Protocol, cast

from fairlane.gateway.wire.framing import Body, Garbage, Open
from fairlane.gateway.wire.response import AnswerHead, Begun, HeadMemory, HeadReader

CLOCK_S = 0.002  # the loop's clock, by which timers fire, counts milliseconds


class Sink(Protocol):
    """Takes one answer: `begin`, then `more` until one of them is the `last`; or `failed` at any time before that.

    With the last piece the connection is no longer the sink's: it is idle again, or closed. Nothing is called after that, nor
    after `abort`, but for one thing: where a call raises, the answer has failed, and `failed` is called even after the last piece.
    """

    def begin(self, head: AnswerHead, length: int | None, data: bytes, last: bool) -> None:  # noqa: FBT001 - positional is faster
        """The head, with what came of the payload; `length` is None where the end is told otherwise."""

    def more(self, data: bytes, framed: bytes, last: bool) -> None:  # noqa: FBT001 - see begin
        """Payload, without framing; none only with `last`. `framed`: the same as whole chunks, if it came so, else empty."""

    def failed(self, why: str, unsent: bool) -> None:  # noqa: FBT001 - see begin
        """The answer will not be complete: reset, closed, garbage or timeout. `unsent`: nothing of the request was written."""


class Owner(Protocol):
    """Whom a connection belongs to, and tells what becomes of it."""

    heads: HeadMemory

    def opened(self, connection: "UpstreamConnection") -> None:
        """It exists."""

    def release(self, connection: "UpstreamConnection") -> None:
        """Its answer is complete, and it can carry another."""

    def hung_up(self, connection: "UpstreamConnection") -> None:
        """The engine closed it, or spoke unasked, while no answer was running."""

    def forget(self, connection: "UpstreamConnection") -> None:
        """It is closed."""


class UpstreamConnection(asyncio.Protocol):
    """One connection to an engine: a request out, its answer into a `Sink`, one at a time. Not for HEAD.

    `heard_at` is the time, by `time.monotonic`, of the last arrival that was more than a part of a head, or of the request before
    it; `limit_s` is how long the engine may be silent from then on, which a sink may change while its answer runs.
    """

    __slots__ = (
        "_body",
        "_keep",
        "_owner",
        "_paused",
        "_poll",
        "_reader",
        "_sink",
        "_tick_s",
        "_timer",
        "_timer_at",
        "_transport",
        "heard_at",
        "idle_since",
        "limit_s",
        "streamed",
    )

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._poll = select.poll()
        self._sink: Sink | None = None
        self._reader: HeadReader | None = None  # of a head that is not whole yet
        self._body: Body | None = None  # of the running answer; None: a head is due, or nothing
        self._keep = False
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._tick_s = 0.0
        self.heard_at = 0.0
        self.idle_since = 0.0
        self.limit_s = 0.0
        self.streamed = False  # whether its last answer was

    def send(self, request: bytes, sink: Sink, first_byte_s: float, idle_s: float) -> None:
        """Write a whole request; its answer goes to `sink`, which is told at once where the connection is closed already.

        `first_byte_s` is the first `limit_s`. It is kept to the moment, and so is one of `idle_s` or more that is set later.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            sink.failed("closed", True)
            return
        self._sink = sink
        self.limit_s = first_byte_s
        self.heard_at = now = monotonic()
        self._tick_s = tick_s = min(first_byte_s, idle_s)
        if self._timer is None or self._timer_at > now + tick_s:
            self._sleep(tick_s)
        transport.write(request)

    def abort(self) -> None:
        """Close at once and tell no one: the engine sees its peer leave and stops working."""
        self._sink = None
        self.idle_since = 0.0  # its end is no hanging up of the engine's
        self._owner.forget(self)
        if self._transport is not None:
            self._transport.abort()

    def close(self, why: str = "closed") -> None:
        """Close at once; a running answer has failed."""
        sink = self._sink
        self.abort()
        if sink is not None:
            sink.failed(why, False)

    def pause(self) -> None:
        """Stop reading: the engine is slowed by TCP, and its silence is none."""
        if self._sink is not None and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._paused:
            self._paused = False
            self.heard_at = monotonic()
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
        self.heard_at = monotonic()
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        """Hand one arrival on, in one call of the sink."""
        sink = self._sink
        if sink is None:
            self._owner.hung_up(self)
            self.abort()
            return
        body = self._body
        try:
            if body is None:
                self._begin(sink, data)
                return
            self.heard_at = monotonic()
            payload = body.feed(data)
            if body.complete:
                self._finish(body)
                sink.more(payload, b"", True)
            elif payload:
                sink.more(payload, data if body.whole else b"", False)
        except Garbage:
            self.close("garbage")
        except BaseException:
            self._distrust(sink)
            raise

    def eof_received(self) -> None:
        """Let the transport close."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell a waiting sink: the end, where the answer was to last until closing, else a failure."""
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        body, sink = self._body, self._sink
        if body is None:
            self._owner.hung_up(self)
        self._owner.forget(self)
        self._sink = None
        if sink is None:
            return
        if exc is not None or not isinstance(body, Open):
            sink.failed("closed" if exc is None else "reset", False)
            return
        try:
            sink.more(b"", b"", True)
        except BaseException:
            self._distrust(sink)
            raise

    # The answer.

    def _begin(self, sink: Sink, data: bytes) -> None:
        """Read the head, or what there is of it, and hand on what follows."""
        begun = self._owner.heads.recall(data) if self._reader is None else None
        if begun is None:
            begun = self._read_head(data)
            if begun is None:
                return
        self.heard_at = monotonic()
        head, length, at = begun
        self._keep = head.keep
        self.streamed = length is None
        self._body = body = head.body(length)
        payload = body.feed(data[at:])
        if body.complete:
            self._finish(body)
        sink.begin(head, length, payload, body.complete)

    def _read_head(self, data: bytes) -> Begun | None:
        if self._reader is None:
            self._reader = HeadReader(self._owner.heads)
        begun = self._reader.feed(data)
        if begun is not None:
            self._reader = None
        return begun

    def _finish(self, body: Body) -> None:
        """The answer is complete: give the connection back, or close it."""
        self._sink = None
        transport = self._transport
        if self._keep and not body.extra and transport is not None and not transport.is_closing():
            self._body = None
            if self._paused:
                self.resume()
            self._owner.release(self)
        else:
            self.abort()

    def _distrust(self, sink: Sink) -> None:
        """A sink made a mistake: its answer has failed, and so has any other that this connection may carry by now."""
        running = self._sink
        self.close("reset")
        if running is not sink:
            sink.failed("reset", False)

    # Silence.

    def _sleep(self, span_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = monotonic() + span_s
        self._timer = asyncio.get_running_loop().call_later(span_s, self._look)

    def _look(self) -> None:
        """End a silence that has lasted too long, or look again. It never sleeps so long that it misses a shorter limit."""
        self._timer = None
        if self._sink is None:
            return  # the next request wakes it
        left = self.limit_s if self._paused else self.heard_at + self.limit_s - monotonic()
        if left > CLOCK_S:
            self._sleep(min(left, self._tick_s))
        else:
            self.close("timeout")
