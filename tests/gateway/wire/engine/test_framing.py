"""The framing of bodies, beside a parser that is not ours: nothing is read otherwise, whatever comes and wherever it is cut."""

from itertools import pairwise

import pytest
from httptools import HttpParserError, HttpResponseParser
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.gateway.wire import framing
from fairlane.gateway.wire.framing import Body, Chunked, Garbage, Open, Sized

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Reference:
    """What llhttp makes of a chunked body: the payload, and how it ended."""

    def __init__(self, data: bytes) -> None:
        self.payload = b""
        self.state = "open"
        parser = HttpResponseParser(self)
        parser.feed_data(HEAD)
        try:
            parser.feed_data(data)
        except HttpParserError:
            self.state = "complete" if self.state == "complete" else "garbage"

    def on_body(self, data: bytes) -> None:
        self.payload += data

    def on_message_complete(self) -> None:
        self.state = "complete"

    def on_message_begin(self) -> None:
        if self.state == "complete":
            raise ValueError


def read(body: Body, *pieces: bytes) -> tuple[bytes, str]:
    """The payload of a body in pieces, and how it ended. Pieces that are passed on as they came are read again by llhttp."""
    payload = b""
    for piece in pieces:
        try:
            part = body.feed(piece)
        except Garbage:
            return payload, "garbage"
        payload += part
        if body.whole:
            assert not body.complete
            again = Reference(piece + b"0\r\n\r\n")
            assert (again.payload, again.state) == (part, "complete")
        if body.complete:
            return payload, "complete"
    return payload, "open"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The data in pieces, none of them empty."""
    at = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(at)]


def chunk(payload: bytes, *, upper: bool = False, zeros: int = 0, extension: bytes = b"") -> bytes:
    """One chunk, in one of the forms that are allowed."""
    digits = b"0" * zeros + (b"%X" if upper else b"%x") % len(payload)
    return b"%b%b\r\n%b\r\n" % (digits, extension, payload)


payloads = st.one_of(st.binary(min_size=1, max_size=40), st.integers(1, 5000).map(lambda size: b"0\r\n\r\n"[: size % 5 + 1] * size))
extensions = st.sampled_from([b"", b"", b";a", b";a=b", b';a="b;\\"\xe4"', b";a;b=c"])
chunks = st.builds(chunk, payloads, upper=st.booleans(), zeros=st.sampled_from([0, 0, 0, 1, 40]), extension=extensions)
trailers = st.sampled_from([b"", b"", b"X-Sum: 1\r\n", b"a:\r\nB: \xe4 \t\r\n"])
bodies = st.builds(
    lambda parts, last, trailer: b"".join(parts) + last + trailer + b"\r\n",
    st.lists(chunks, max_size=5),
    st.sampled_from([b"0\r\n", b"0\r\n", b"000\r\n", b"0;a=b\r\n"]),
    trailers,
)
places = st.lists(st.integers(0, 20_000), max_size=8)
noise = st.sampled_from(
    [b"", *(bytes([byte]) for byte in b'01fFxX+-_ \t;=":\\\r\n\0\x80g'), b"\r\n", b"\n\n", b"ffffffffffffffffff", b"0\r\n\r\n"]
)


@given(body=bodies, at=places, extra=st.sampled_from([b"", b"x", b"HTTP/1.1 200 OK\r\n\r\n"]))
@settings(max_examples=300, deadline=None)
def test_chunks_are_read_as_llhttp_reads_them(body: bytes, at: list[int], extra: bytes) -> None:
    """Every legal form, cut anywhere; what follows the end is told from what is in it."""
    wanted = Reference(body)
    assert wanted.state == "complete"
    for pieces in ([body], cut(body, at)):
        assert read(Chunked(), *pieces) == (wanted.payload, "complete")
    decoder = Chunked()
    assert read(decoder, body + extra) == (wanted.payload, "complete")
    assert decoder.extra is bool(extra)


@given(body=bodies, changes=st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 2), noise), min_size=1, max_size=3), at=places)
@settings(max_examples=600, deadline=None)
def test_malformed_chunks_are_never_read_as_anything_else(body: bytes, changes: list[tuple[int, int, bytes]], at: list[int]) -> None:
    """What is read to its end llhttp reads to the same end; what it refuses is refused, or is waited for and never passed."""
    for place, size, byte in changes:
        start = place % (len(body) + 1)
        body = body[:start] + byte + body[start + size :]
    wanted = Reference(body)
    payload, state = read(Chunked(), *cut(body, at))
    assert read(Chunked(), body)[1] == state
    assert wanted.payload.startswith(payload)
    if state == "complete":
        assert (wanted.payload, wanted.state) == (payload, "complete")
    if wanted.state == "garbage":
        assert state != "complete"


def test_a_body_is_read_alike_when_it_is_cut_at_every_offset() -> None:
    """In two pieces and in single bytes."""
    body = chunk(b"ab\r\n") + chunk(b"c" * 300, upper=True, extension=b";x") + chunk(b"0\r\n\r\n") + b"0\r\nT: 1\r\n\r\n"
    wanted = (b"ab\r\n" + b"c" * 300 + b"0\r\n\r\n", "complete")
    for i in range(1, len(body)):
        assert read(Chunked(), body[:i], body[i:]) == wanted
    assert read(Chunked(), *(body[i : i + 1] for i in range(len(body)))) == wanted


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        ([chunk(b"abc")], [True]),
        ([chunk(b"abc") + chunk(b"x" * 5000)], [True]),
        ([chunk(b"x" * 5000, upper=True)], [True]),
        ([chunk(b"abc", extension=b";a")], [False]),
        ([b"3\r\nab", b"c\r\n", chunk(b"d")], [False, False, True]),
        ([chunk(b"abc")[:-1], b"\n", chunk(b"d")], [False, False, True]),
        ([b"3", b"\r\nabc\r\n", chunk(b"d")], [False, False, True]),
        ([chunk(b"abc") + b"0\r\n\r\n"], [False]),
        ([chunk(b"abc"), b"0\r\n", b"\r\n"], [True, False, False]),
    ],
)
def test_whole_chunks_are_known_as_such(pieces: list[bytes], whole: list[bool]) -> None:
    """They may be passed on as they came; a part of one, an extension or the last one may not."""
    decoder = Chunked()
    seen = []
    for piece in pieces:
        decoder.feed(piece)
        seen.append(decoder.whole)
    assert seen == whole


@given(size=st.integers(1, 4200), shift=st.integers(-2, 2), end=st.sampled_from([b"\r\n", b"\n\r", b"xx"]))
@settings(max_examples=300, deadline=None)
def test_a_piece_of_one_chunk_is_known_by_its_length(size: int, shift: int, end: bytes) -> None:
    """The short way gives what the long way gives, for a size that is right and for one that is nearly right."""
    piece = b"%x\r\n%b%b" % (max(size + shift, 0), b"x" * size, end)
    for rest in ((), (chunk(b"more"),)):
        short, long = read(Chunked(), piece, *rest), read(Chunked(), piece[:1], piece[1:], *rest)
        assert short[1] == long[1]
        assert short == long or short[1] == "garbage"


@pytest.mark.parametrize(
    "body",
    [
        b"1;" + b"a" * framing.LINE_BYTES,
        b"0\r\na: " + b"b" * framing.LINE_BYTES,
        b"0\r\n" + b"a: bcd\r\n" * framing.TRAILER_BYTES,
        b"%x\r\nabc" % (framing.CHUNK_BYTES + 1),
        b"f" * 400 + b"\r\nabc",
        b"5\nabcde",
        b"\r\n",
        b"1\r\nab",
        b"1\r\na\rx",
    ],
)
def test_what_is_not_bounded_or_not_framed_is_garbage(body: bytes) -> None:
    """In one piece and in single bytes."""
    assert read(Chunked(), body) == (b"", "garbage")
    assert read(Chunked(), *(body[i : i + 1] for i in range(len(body))))[1] == "garbage"


@given(data=st.binary(max_size=30), length=st.integers(0, 40), at=places)
def test_a_length_is_counted_down(data: bytes, length: int, at: list[int]) -> None:
    """Exactly so many bytes are the body, and what comes beyond it is noticed."""
    body = Sized(length)
    pieces = cut(data, at) or [b""]
    assert read(body, *pieces) == (data[:length], "complete" if len(data) >= length else "open")
    assert not body.extra or len(data) > length
    whole = Sized(length)
    assert whole.feed(data) == data[:length]
    assert whole.extra is (len(data) > length)


def test_an_open_body_is_all_that_comes() -> None:
    """Only its connection ends it."""
    assert read(Open(), b"a", b"\r\n") == (b"a\r\n", "open")
