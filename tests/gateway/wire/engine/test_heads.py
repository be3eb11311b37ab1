"""The heads of answers: read like llhttp reads whole answers, and known again only where that is the same as reading them."""

from itertools import pairwise

import pytest
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairlane.gateway.wire.framing import Garbage
from fairlane.gateway.wire.response import AnswerHead, Headers, HeadMemory, HeadReader

PLAIN = b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 07:00:00 GMT\r\ncontent-length: %b\r\ncontent-type: application/json\r\n\r\n"
TWIN = b"HTTP/1.1 200 OK\r\nX-Content-Length: 300\r\nContent-Length: 3\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Reference:
    """What llhttp makes of a whole answer."""

    def __init__(self, data: bytes) -> None:
        self.status = 0
        self.headers: Headers = []
        self.length: int | None = None
        self.payload = b""
        self.complete = False
        self.keep = False
        self.refused = False
        self._parser = HttpResponseParser(self)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self.refused = not self.complete

    def on_message_begin(self) -> None:
        if self.complete:
            raise ValueError

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status:
            return
        if name.lower() == b"content-length":
            self.length = int(value)
        else:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self.status, self.length = 0, None
            self.headers.clear()

    def on_body(self, data: bytes) -> None:
        self.payload += data

    def on_message_complete(self) -> None:
        if self.status:
            self.complete = True
            self.keep = self._parser.should_keep_alive()

    @property
    def figures(self) -> tuple[object, ...]:
        return self.status, self.headers, self.length, self.payload, self.complete


def read(memory: HeadMemory, *pieces: bytes) -> tuple[AnswerHead, tuple[object, ...]]:
    """What is made of an answer here: its head, and the figures of a reference."""
    reader = HeadReader(memory)
    waiting = list(pieces)
    while waiting:
        piece = waiting.pop(0)
        begun = reader.feed(piece)
        if begun is not None:
            head, length, at = begun
            body = head.body(length)
            payload = body.feed(piece[at:])
            for later in waiting:
                if not body.complete:
                    payload += body.feed(later)
            return head, (head.status, head.headers, length, payload, body.complete)
    raise AssertionError("the head is not whole")


names = st.sampled_from(
    [b"X-A", b"Connection", b"connection", b"Date", b"Upgrade", b"Keep-Alive", b"Transfer-Encoding", b"Content-Type", b"Trailer"]
)
values = st.sampled_from(
    [b"", b"a b", b"close", b"keep-alive", b"Keep-Alive, x", b"chunked", b"h2c", b"upgrade", b"gzip, chunked", b"\xe4", b"1 ;\t2"]
)
lengths = st.sampled_from(
    [b"Content-Length: 3", b"content-length:3", b"CONTENT-LENGTH:\t 3 ", b"Content-Length: 0", b"Content-Length: 000003"]
)
lines = st.builds(lambda name, value: b"%b: %b" % (name, value), names, values)
firsts = st.sampled_from(
    [b"HTTP/1.1 200 OK", b"HTTP/1.1 200", b"HTTP/1.0 200 OK", b"HTTP/1.1 204 No Content", b"HTTP/1.1 304 N", b"HTTP/1.1 503 \xe4"]
)
heads = st.builds(
    lambda first, more: b"\r\n".join([first, *more, b"", b""]), firsts, st.lists(st.one_of(lines, lines, lengths), max_size=5)
)
interim = st.sampled_from([b"", b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 E\r\nLink: x\r\nContent-Length: 9\r\n\r\n"])
bodies = st.sampled_from([b"", b"ab", b"abc", b"abcd", b"3\r\nabc\r\n0\r\n\r\n", b"3\r\nabc\r\n0\r\n\r\nx"])
places = st.lists(st.integers(0, 400), max_size=5)
bytes_ = st.sampled_from([bytes([byte]) for byte in b"0139:; \t\r\nCcHx\0\x80,"] + [b"", b"\r\n", b"\r\ncontent-length: 4", b"4\r\nA: "])


@given(before=interim, head=heads, body=bodies, at=places)
@settings(max_examples=500, deadline=None)
def test_an_answer_is_read_as_llhttp_reads_it(before: bytes, head: bytes, body: bytes, at: list[int]) -> None:
    """Status, headers, length, payload, end and keeping; what it refuses is refused, and transfer codings that we do not know."""
    data = before + head + body
    wanted = Reference(data)
    cuts = sorted({0, len(data), *(place % len(data) for place in at)})
    for pieces in ([data], [data[a:b] for a, b in pairwise(cuts)]):
        try:
            made, figures = read(HeadMemory(), *pieces)
        except Garbage:
            unknown = any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in wanted.headers)
            assert wanted.refused or unknown
            return
        if not wanted.refused:
            assert figures == wanted.figures
            assert made.keep is wanted.keep or not wanted.complete


def figures_of(begun: tuple[AnswerHead, int | None, int]) -> tuple[object, ...]:
    """All that a head says."""
    head, length, at = begun
    return head.status, head.headers, head.keep, head.events, head.lines, head.unbuffered, type(head.body(length)), length, at


@given(
    known=st.one_of(heads, st.sampled_from([PLAIN % b"300", STREAM, TWIN])),
    digits=st.one_of(
        st.integers(0, 10**25).map(lambda number: b"%d" % number), st.sampled_from([b"", b"007", b"+3", b"3 ", b"3,3", b"0x3"])
    ),
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 2), bytes_), max_size=2),
    body=bodies,
)
@example(known=PLAIN % b"300", digits=b"9" * 25, changes=[], body=b"")
@settings(max_examples=800, deadline=None)
def test_a_head_that_is_known_is_what_it_would_be_read_as(
    known: bytes, digits: bytes, changes: list[tuple[int, int, bytes]], body: bytes
) -> None:
    """With another length, a changed byte, another line: either it is not known, or reading it gives the same."""
    memory = HeadMemory()
    try:
        HeadReader(memory).feed(known)
    except Garbage:
        return
    data = known.replace(b"300", digits)
    for place, size, byte in changes:
        start = place % (len(data) + 1)
        data = data[:start] + byte + data[start + size :]
    begun = memory.recall(data + body)
    if begun is not None:
        again = HeadReader(HeadMemory()).feed(data + body)
        assert again is not None
        assert figures_of(begun) == figures_of(again)


def test_the_last_head_is_known_again_whatever_its_length() -> None:
    """One that declares a length and one that does not, side by side; a head that is cut is not known."""
    memory = HeadMemory()
    assert memory.recall(PLAIN % b"300") is None
    HeadReader(memory).feed(PLAIN % b"300" + b"{")
    HeadReader(memory).feed(STREAM)
    for length in (b"0", b"7", b"123456789012345"):
        begun = memory.recall(PLAIN % length + b"{")
        assert begun is not None
        assert begun[1:] == (int(length), len(PLAIN % length))
    begun = memory.recall(STREAM + b"3\r\n")
    assert begun is not None
    assert (begun[0].events, begun[1], begun[2]) == (True, None, len(STREAM))
    for i in range(len(PLAIN % b"300")):
        assert memory.recall((PLAIN % b"300")[:i]) is None
    assert memory.recall((PLAIN % b"300").replace(b":00 GMT", b":01 GMT")) is None


def test_a_head_that_came_in_pieces_is_known_again() -> None:
    """What counts is its bytes; interim heads before it are no part of it."""
    memory = HeadMemory()
    reader = HeadReader(memory)
    data = b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN % b"300"
    assert [reader.feed(data[i : i + 1]) for i in range(len(data) - 1)] == [None] * (len(data) - 1)
    assert reader.feed(data[-1:]) is not None
    assert memory.recall(data) is None
    assert memory.recall(PLAIN % b"5") is not None


@pytest.mark.parametrize("head", [PLAIN % b"300", STREAM])
def test_a_head_has_its_lines_for_the_client_ready(head: bytes) -> None:
    """Without the framing, which is made anew; Date passes."""
    begun = HeadReader(HeadMemory()).feed(head)
    assert begun is not None
    made = begun[0]
    assert b"content-length" not in made.lines
    assert b"transfer-encoding" not in made.lines
    assert (b"date: Mon" in made.lines) is (b"date" in head)
    assert made.unbuffered == b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"
