"""Structured logs that do not hold up the event loop, even when nobody reads them.

A line is made when it is logged and kept in one buffer; `flush`, which the caller schedules, writes them all at once. Before each
write the sink is asked whether it takes bytes now. Its file description stays in blocking mode, because that mode is shared
with every process on the same terminal or pipe; a piece of at most `PIECE_BYTES` does not block a pipe or socket that is ready.
While the sink takes nothing, lines are kept up to a bound, then dropped and counted. All of it belongs to one thread.
"""

import os
import re
import select
import stat
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

import orjson

from fairlane.telemetry.trail import Trail

LEVELS: tuple[str, ...] = ("debug", "info", "warning", "error")
PIECE_BYTES = select.PIPE_BUF  # a pipe is ready when it has room for this much
FILE_PIECE_BYTES = 1 << 20  # a regular file is always ready
KEPT_BYTES_MAX = 1 << 20  # some 3,000 lines: seconds of full load, and no memory to speak of
PATH_MAX = 64  # characters of a path that are logged
CLIENT_LEFT = 499  # the status where the client left before there was one

_OPTIONS = orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z
_NOT_PLAIN = re.compile(r"[\s\"'=\\]")


class Sink(Protocol):
    """What a log writes to: an open file with a descriptor, such as sys.stderr."""

    def fileno(self) -> int:
        """The file descriptor."""

    def isatty(self) -> bool:
        """Whether a person reads it."""


class Log:
    """One JSON object a line, or a readable line where a person reads. `dropped` counts lines that were lost."""

    def __init__(self, stream: Sink, level: str = "info", *, clock: Callable[[], float] = time.time) -> None:
        self.dropped = 0
        self._fd = stream.fileno()
        self._piece = FILE_PIECE_BYTES if stat.S_ISREG(os.fstat(self._fd).st_mode) else PIECE_BYTES
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLOUT)
        self._format = _readable if stream.isatty() else _json
        self._clock = clock
        self._lowest = LEVELS.index(level)
        self._kept = bytearray()  # a list of lines would cost four times as much: each keeps the kilobyte that orjson begins with
        self._reported = 0

    def debug(self, event: str, **fields: object) -> None:
        """What helps to follow one request."""
        self._log(0, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """What an operator may want to know afterwards."""
        self._log(1, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """What an operator should look at in time."""
        self._log(2, event, fields)

    def error(self, event: str, **fields: object) -> None:
        """What is broken now."""
        self._log(3, event, fields)

    def request(self, trail: Trail, total_s: float) -> None:
        """The access line of one request. It has no room for a prompt, an answer or a key; unknown values are null."""
        if self._lowest > 1:
            return
        queue_s, ttft_s = trail.queue_s, trail.ttft_s
        yields = {"yields": trail.yields, "yielded_tokens": trail.yielded_tokens} if trail.yields else {}
        self._write(
            {
                "event": "request",
                "ts": self._now(),
                "level": "info",
                "request_id": trail.request_id,
                "tenant": trail.caller,
                "class": trail.cls,
                "model": trail.model,
                "route": trail.path[:PATH_MAX],
                "status": trail.status or CLIENT_LEFT,
                "outcome": trail.outcome,
                "reason": trail.reason,
                "engine": trail.engine,
                "queue_ms": None if queue_s is None else _tenths_ms(queue_s),
                "ttft_ms": None if ttft_s is None else _tenths_ms(ttft_s),
                "total_ms": _tenths_ms(total_s),
                "tokens_in": trail.tokens_in,
                "tokens_out": trail.tokens_out,
                **yields,
            }
        )

    @property
    def pending(self) -> bool:
        """Whether `flush` has something to write."""
        return bool(self._kept)

    def flush(self) -> None:
        """Write what the sink takes now, and keep the rest. A sink that is gone loses what was kept."""
        if not self._kept or not self._ready():
            return
        if self.dropped > self._reported:
            self._reported = self.dropped
            self._kept += self._format({"event": "log_lines_dropped", "ts": self._now(), "level": "warning", "total": self.dropped})
        try:
            del self._kept[: self._send()]
        except OSError:
            self.dropped += self._kept.count(b"\n")
            self._kept.clear()

    def _log(self, level: int, event: str, fields: dict[str, object]) -> None:
        if level >= self._lowest:
            self._write({"event": event, "ts": self._now(), "level": LEVELS[level], **fields})

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)

    def _write(self, record: dict[str, object]) -> None:
        line = self._format(record)
        if len(self._kept) + len(line) > KEPT_BYTES_MAX:
            self.dropped += 1
        else:
            self._kept += line

    def _ready(self) -> bool:
        return bool(self._poll.poll(0))

    def _send(self) -> int:
        sent = 0
        with memoryview(self._kept) as kept:
            while sent < len(kept) and self._ready():
                try:
                    sent += os.write(self._fd, kept[sent : sent + self._piece])
                except BlockingIOError:  # whoever shares the file description made it non-blocking, and was faster
                    break
        return sent


def _json(record: dict[str, object]) -> bytes:
    try:
        return orjson.dumps(record, default=str, option=_OPTIONS)
    except orjson.JSONEncodeError:  # a lone surrogate, or an integer above 64 bits
        return orjson.dumps({key: _mended(value) for key, value in record.items()}, default=str, option=_OPTIONS)


def _mended(value: object) -> object:
    try:
        orjson.dumps(value, default=str)
    except orjson.JSONEncodeError:
        return str(value).encode("utf-8", "backslashreplace").decode()
    return value


def _readable(record: dict[str, object]) -> bytes:
    fields = dict(record)
    event, level, at = fields.pop("event"), fields.pop("level"), fields.pop("ts")
    words = [f"{key}={_word(str(value))}" for key, value in fields.items() if value is not None]
    clock = at.astimezone().strftime("%H:%M:%S") if isinstance(at, datetime) else at
    return f"{clock} {level:<7} {' '.join((_word(str(event)), *words))}\n".encode()


def _word(text: str) -> str:
    """The text itself where it is one plain word, else quoted: a name cannot move the cursor or forge a line."""
    return text if text.isprintable() and not _NOT_PLAIN.search(text) and text else repr(text)


def _tenths_ms(seconds: float) -> float:
    """Milliseconds with one decimal; calling round() for it would take twice as long."""
    return int(seconds * 10_000 + 0.5) / 10
