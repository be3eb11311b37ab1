"""Reads the heads of an engine's answers, and knows the last ones again.

The parser (llhttp, strict) sees heads only, and each head a new one. What it lets pass and a gateway must not is refused here: an
endless head, transfer codings other than chunked, a switch of protocols.

An engine sends the same head again and again but for the digits of its content-length, and once a second for its Date. So the
bytes before and after those digits are kept with what they were read as, and an answer that begins with them is not parsed.
That is as good as parsing it. A new parser knows nothing but these bytes; the strict one refuses folded lines and bare line feeds,
so what stands between CR LF, `content-length:` and the next CR LF is the value of that header, and the digits in it decide nothing
but the length. Fifteen of them are a number that no parser refuses.

Of the headers the client gets what is not the engine's own. Hop-by-hop headers, what `Connection` names, cookies, the server's
name and the names that this gateway speaks for itself stay behind; so do cross-origin rules, which are the gateway's.
Everything else passes, `Date` and encodings included.
"""

import re
from typing import NamedTuple

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from fairlane.gateway.wire.framing import Body, Chunked, Garbage, Open, Sized

Headers = list[tuple[bytes, bytes]]  # under lower-case names

HEAD_BYTES = 64 * 1024  # of the final head and the interim ones before it
DIGITS = 15

OWN_HEADERS = frozenset(
    {
        b"connection",
        b"content-length",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-connection",
        b"server",
        b"set-cookie",
        b"set-cookie2",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"x-request-id",
    }
)
OWN_PREFIXES = (b"x-fairlane-", b"x-ratelimit-", b"access-control-")  # limits and cross-origin rules are the gateway's
UNBUFFERED = ((b"cache-control", b"cache-control: no-cache\r\n"), (b"x-accel-buffering", b"x-accel-buffering: no\r\n"))

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,%d})\r\n" % DIGITS, re.IGNORECASE)


class AnswerHead:
    """What the head of an answer says but for the length, and what is made of it once for every client.

    `headers` are without the length. `keep`: the connection can carry another answer. `events`: it is an event stream that can be
    read here. `lines` are the headers for the client, `unbuffered` those that a stream needs besides. Many answers share one: it
    is never changed.
    """

    __slots__ = ("_chunked", "events", "headers", "keep", "lines", "status", "unbuffered")

    def __init__(self, status: int, headers: Headers, *, keep: bool, chunked: bool) -> None:
        self.status = status
        self.headers = headers
        self.keep = keep
        self.events = status == 200 and is_event_stream(headers)
        self.lines = pass_headers(headers)
        self.unbuffered = unbuffered(headers)
        self._chunked = chunked

    def body(self, length: int | None) -> Body:
        """What is to come after this head (RFC 9112, 6.3)."""
        if self.status in {204, 304}:
            return Sized(0)
        if self._chunked:
            return Chunked()
        return Open() if length is None else Sized(length)


Begun = tuple[AnswerHead, int | None, int]  # a head, the length it declares, and where its body begins in the piece at hand


class _Known(NamedTuple):
    before: bytes
    after: bytes  # the digits of the length; empty where there is none
    head: AnswerHead


class HeadMemory:
    """The last heads of one engine: one that declares a length, and one that does not."""

    __slots__ = ("_sized", "_unsized")

    def __init__(self) -> None:
        self._sized: _Known | None = None
        self._unsized: _Known | None = None

    def recall(self, data: bytes) -> Begun | None:
        """What an answer is that begins with this piece, where its head is known."""
        if self._sized is not None:
            before, after, head = self._sized
            if data.startswith(before):
                start = len(before)
                stop = data.find(b"\r", start, start + DIGITS + 1)
                digits = data[start:stop] if stop > start else b""
                if digits.isdigit() and data.startswith(after, stop):
                    return head, int(digits), stop + len(after)
        if self._unsized is not None and data.startswith(self._unsized.before):
            return self._unsized.head, None, len(self._unsized.before)
        return None

    def learn(self, raw: bytes, head: AnswerHead, length: int | None) -> None:
        """Keep a head that was read from these bytes."""
        if length is None:
            self._unsized = _Known(raw, b"", head)
        elif match := _LENGTH.search(raw):
            self._sized = _Known(raw[: match.start(1)], raw[match.end(1) :], head)


class HeadReader:
    """Reads the head of one answer in however many pieces it comes; interim ones are passed over."""

    __slots__ = ("_chunked", "_fed", "_headers", "_held", "_keep", "_length", "_memory", "_parser", "_status")

    def __init__(self, memory: HeadMemory) -> None:
        self._memory = memory
        self._fed = 0
        self._expect()

    def _expect(self) -> None:
        self._held = bytearray()
        self._headers: Headers = []
        self._length: int | None = None
        self._chunked = False
        self._keep = False
        self._status = 0
        self._parser = HttpResponseParser(self)

    def feed(self, data: bytes) -> Begun | None:
        """Take the next piece; None: the head goes on. Raises `Garbage`."""
        at = 0
        while at < len(data):
            known = len(self._held)
            self._held += data[at:]
            end = self._held.find(b"\r\n\r\n", max(known - 3, 0)) + 4
            size = end - known if end >= 4 else len(data) - at
            self._parse(data[at : at + size])
            if end < 4:
                return None
            at += size
            if self._status >= 200:
                return self._begin(bytes(self._held[:end]), at)
            if self._status < 102 and self._status != 100:
                raise Garbage
            self._expect()
        return None

    def _parse(self, data: bytes) -> None:
        self._fed += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            raise Garbage from None
        if self._fed > HEAD_BYTES:
            raise Garbage

    def _begin(self, raw: bytes, at: int) -> Begun:
        head = AnswerHead(self._status, self._headers, keep=self._keep, chunked=self._chunked)
        self._memory.learn(raw, head, self._length)
        return head, self._length, at

    # What the parser tells.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect headers under lower-case names, but for the length."""
        name = name.lower()
        if name == b"content-length":
            self._length = int(value)
            return
        self._headers.append((name, value))
        if name == b"transfer-encoding":
            if value.lower() != b"chunked":
                raise Garbage  # which the parser reports as an error of its own
            self._chunked = True

    def on_headers_complete(self) -> None:
        """Note that the head is whole."""
        self._status = self._parser.get_status_code()
        self._keep = self._parser.should_keep_alive()  # the parser forgets it where the message is complete with its head


def is_event_stream(headers: Headers) -> bool:
    """Tell an event stream that can be read here: one in a content encoding is passed like any other body."""
    kind = coding = b""
    for name, value in headers:
        if name == b"content-type":
            kind = value
        elif name == b"content-encoding":
            coding = value
    return kind[:17].lower() == b"text/event-stream" and coding.lower() in (b"", b"identity")


def pass_headers(headers: Headers) -> bytes:
    """Make the header lines for the client out of an engine's."""
    named: set[bytes] = set()
    for name, value in headers:
        if name == b"connection" and value.lower() not in (b"keep-alive", b"close"):
            named.update(token.strip().lower() for token in value.split(b","))
    lines = [
        b"%b: %b\r\n" % (name, value)
        for name, value in headers
        if name not in OWN_HEADERS and not name.startswith(OWN_PREFIXES) and name not in named
    ]
    return b"".join(lines)


def unbuffered(headers: Headers) -> bytes:
    """The lines that keep others from collecting a stream, where the engine does not say so itself."""
    present = {name for name, _ in headers}
    return b"".join([line for name, line in UNBUFFERED if name not in present])
