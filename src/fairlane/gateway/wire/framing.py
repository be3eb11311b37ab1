"""Takes the framing off an answer's body (RFC 9112, 6 and 7): by length, in chunks, or up to the end of the connection.

Chunks are decoded here rather than by the parser of heads: a piece that is nothing but whole chunks can be passed on as it is,
and only who has read the framing knows that. The decoder is strict, for others will read what it passes: a size is
hexadecimal digits, every line is bounded and ends with CR LF, extensions and trailers are well formed, and dropped.
"""

import re
from typing import Protocol

LINE_BYTES = 1024  # of a size with its extensions, or of one trailer, CR LF included
TRAILER_BYTES = 16 * 1024  # of all trailers together
CHUNK_BYTES = 1 << 60  # of one chunk: no engine means more

_LONE = {size + len(b"%x" % size) + 4: b"%x\r\n" % size for size in range(1, 4096)}  # how a piece begins that is one chunk, by length
_HEX = b"0123456789abcdefABCDEF"
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED = rb'"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t \x21-\x7e\x80-\xff])*"'
_EXTENDED = re.compile(rb"([0-9a-fA-F]+)(?:;%b(?:=(?:%b|%b))?)+" % (_TOKEN, _TOKEN, _QUOTED))
_TRAILER = re.compile(rb"%b:[\t \x21-\x7e\x80-\xff]*" % _TOKEN)


class Garbage(Exception):
    """What came is not the answer that was asked for, or none at all."""


class Body(Protocol):
    """What is still to come of one answer.

    `complete`: all of it has come; `extra`: and more than that. `whole`: the piece that was fed last is nothing but whole
    chunks in the plainest form, without the last one, so that anybody who takes chunks may have it as it is.
    """

    @property
    def complete(self) -> bool: ...  # noqa: D102
    @property
    def extra(self) -> bool: ...  # noqa: D102
    @property
    def whole(self) -> bool: ...  # noqa: D102

    def feed(self, data: bytes) -> bytes:
        """The payload in the next piece, perhaps none; raises `Garbage`."""


class Sized:
    """A body of a known length."""

    __slots__ = ("_left", "complete", "extra")

    whole = False

    def __init__(self, length: int) -> None:
        self._left = length
        self.complete = not length
        self.extra = False

    def feed(self, data: bytes) -> bytes:
        """As much of the piece as belongs to the body."""
        left = self._left
        self._left = rest = left - len(data)
        if rest > 0:
            return data
        self.complete = True
        if rest:
            self.extra = True
            return data[:left]
        return data


class Open:
    """A body that ends with its connection."""

    __slots__ = ()

    complete = False
    extra = False
    whole = False

    def feed(self, data: bytes) -> bytes:
        """All of the piece."""
        return data


class Chunked:
    """A body in chunks."""

    __slots__ = ("_due", "_ending", "_rest", "_trailer_bytes", "complete", "extra", "whole")

    def __init__(self) -> None:
        self._due = 0  # bytes of the running chunk, its CR LF included; 0: a size is due
        self._ending = False  # the last chunk has come: trailers, and an empty line
        self._rest = b""  # of a line, or the CR after a chunk: read again with the next piece
        self._trailer_bytes = 0
        self.complete = False
        self.extra = False
        self.whole = False

    def feed(self, data: bytes) -> bytes:
        """What the piece holds of chunks, without their framing."""
        if not (self._due or self._rest or self._ending):
            self.whole = True
            line = _LONE.get(len(data))
            if line is not None and data.startswith(line) and data.endswith(b"\r\n"):
                return data[len(line) : -2]
        else:
            self.whole = False
            data, self._rest = self._rest + data, b""
            if self._ending:
                self._end(data)
                return b""
        payload: list[bytes] = []
        at, end = 0, len(data)
        while at < end:
            at = self._take(data, at, payload)
        return b"".join(payload)

    def _take(self, data: bytes, at: int, payload: list[bytes]) -> int:
        """Take the chunk that begins or goes on at this place; return where it ends in the piece."""
        due = self._due
        if not due:
            stop = data.find(b"\r\n", at, at + LINE_BYTES)
            if stop < 0:
                return self._keep(data, at)
            line = data[at:stop]
            if not line or line.strip(_HEX):
                self.whole = False
                line = _without_extensions(line)
            at = stop + 2
            due = int(line, 16) + 2
            if due == 2:
                self._ending = True
                return self._end(data, at)
        stop = at + due
        if stop > len(data):
            return self._take_part(data, at, payload, due)
        if data[stop - 2 : stop] != b"\r\n":
            raise Garbage
        payload.append(data[at : stop - 2])
        self._due = 0
        return stop

    def _take_part(self, data: bytes, at: int, payload: list[bytes], due: int) -> int:
        """Take what has come of a chunk."""
        if due > CHUNK_BYTES:
            raise Garbage
        stop = min(len(data), at + due - 2)
        payload.append(data[at:stop])
        self._due = due - (stop - at)
        self._rest = rest = data[stop:]
        if rest not in {b"", b"\r"}:
            raise Garbage
        self.whole = False
        return len(data)

    def _keep(self, data: bytes, at: int) -> int:
        """Keep the beginning of a line until the rest has come."""
        self.whole = False
        self._rest = rest = data[at:]
        if len(rest) >= LINE_BYTES or b"\n" in rest:
            raise Garbage
        return len(data)

    def _end(self, data: bytes, at: int = 0) -> int:
        """Drop trailers up to the empty line."""
        self.whole = False
        while (stop := data.find(b"\r\n", at, at + LINE_BYTES)) != at:
            if stop < 0:
                return self._keep(data, at)
            self._trailer_bytes += stop - at
            if self._trailer_bytes > TRAILER_BYTES or not _TRAILER.fullmatch(data, at, stop):
                raise Garbage
            at = stop + 2
        self.complete = True
        self.extra = at + 2 < len(data)
        return len(data)


def _without_extensions(line: bytes) -> bytes:
    """The digits of a size that has more on its line."""
    match = _EXTENDED.fullmatch(line)
    if match is None:
        raise Garbage
    return match[1]
