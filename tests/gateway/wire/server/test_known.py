"""Heads that come again: what is recognised without the parser is what the parser would have made of it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Unpack

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlane.gateway.wire.exchange import Exchange, Head, Refusal
from fairlane.gateway.wire.known import DIGITS_MAX, KNOWN_BYTES, remember
from fairlane.gateway.wire.reader import Intake, RequestReader
from tests.gateway.wire.server.asking import Nowhere, echo, post
from tests.gateway.wire.sockets import POST, End, Limits, Listener, connect, run, serving, until

LIMIT = 1000  # bytes of a body
HEAD = b"POST /v1/chat?a=b HTTP/1.1\r\nHost: x\r\nX-A: 1\r\nContent-Length: %b\r\nAuthorization: k\r\n\r\n"
HEAD_SAYS = ("headers", "http_10", "keep_alive", "method", "owner", "path", "query", "target")
HELLO = HEAD % b"5" + b"hello"


def judge(exchange: Exchange) -> Refusal | None:
    """Refuse who has no key, as soon as the head is there; note whose the request is."""
    exchange.head.owner = exchange.head.headers.get(b"authorization")
    return None if exchange.head.owner else (401, b"", b"")


def reader(max_header_bytes: int = 32768) -> RequestReader:
    """A reader of its own."""
    return RequestReader(Intake(judge, lambda *_: (b"", b""), lambda *_: None, LIMIT, max_header_bytes), Nowhere())


def read(parser: RequestReader, pieces: Iterable[bytes], *, forgetful: bool = False) -> list[Exchange]:
    """Read pieces as a connection does that answers each request at once. If forgetful, leave everything to the parser."""
    exchanges = []
    for piece in pieces:
        if forgetful:
            parser._known = None
        if parser.deaf:
            break
        exchange = parser.recognise(piece)
        if exchange is None:
            parser.feed(piece)
            exchanges += parser.complete
            parser.complete.clear()
        else:
            exchanges.append(exchange)
    return exchanges


def said(head: Head) -> tuple[object, ...]:
    """All that a head says."""
    return tuple(getattr(head, name) for name in HEAD_SAYS)


def seen(pieces: Iterable[bytes], *, forgetful: bool) -> object:
    """All that came out of these pieces, and what the reader waits for now."""
    parser = reader()
    exchanges = [(said(e.head), e.body, e.keep_alive, e.refusal) for e in read(parser, pieces, forgetful=forgetful)]
    state = parser.deaf, parser.unread, parser.continue_due, bytes(parser._body)
    incoming = None if parser.incoming is None else (parser.head_seen, parser._size, parser.incoming.refusal)
    return exchanges, state, incoming


def agree(*pieces: bytes) -> None:
    """Hold reading with a memory to what the parser makes of the same pieces."""
    assert seen(pieces, forgetful=False) == seen(pieces, forgetful=True)


def recognised(*pieces: bytes) -> int:
    """How many exchanges have a head that was not read for them."""
    heads = [id(exchange.head) for exchange in read(reader(), pieces)]
    return len(heads) - len(set(heads))


# Recognised.


@pytest.mark.parametrize("body", [b"", b"1", b"123456789", b"x" * 10, b"x" * 999, b"x" * LIMIT])
def test_another_length_is_recognised(body: bytes) -> None:
    """The digits of the length may differ, in number too; body, head and owner are those that parsing would have found."""
    again = HEAD % b"%d" % len(body) + body
    assert recognised(HELLO, again, HELLO) == 2
    agree(HELLO, again, HELLO)


@pytest.mark.parametrize("cut", range(len(HEAD) - 1, len(HEAD) + 5))
def test_a_body_may_come_in_pieces_of_its_own(cut: int) -> None:
    """A recognised head waits for its body, and what follows that is parsed."""
    pieces = HELLO[:cut], HELLO[cut:] + HELLO[:30], HELLO[30:], HELLO
    assert recognised(HELLO, *pieces) >= 2
    agree(HELLO, *pieces)


@pytest.mark.parametrize("head", [HEAD, HEAD.replace(b"h: %b", b"h:\t %b"), HEAD.replace(b"1.1", b"1.0\r\nConnection: keep-alive")])
def test_heads_are_recognised_however_they_are_written(head: bytes) -> None:
    """Blanks and the version are part of what is compared."""
    message = head % b"5" + b"hello"
    assert recognised(message, message) == 1
    agree(message, message)


def test_a_judged_head_is_not_judged_again() -> None:
    """The first verdict holds for all that follow on the connection with the same head."""
    judged: list[Exchange] = []
    parser = RequestReader(Intake(judged.append, lambda *_: (b"", b""), lambda *_: None, LIMIT, 32768), Nowhere())
    assert [e.body for e in read(parser, [HELLO] * 3)] == [b"hello"] * 3
    assert len(judged) == 1


# Not recognised.


OTHER = (
    b"05",
    b"+5",
    b"-5",
    b" 5",
    b"5 ",
    b"5,5",
    b"5, 5",
    b"",
    b"0x5",
    b"5_0",
    b"\xb2",
    b"5\r\nA: b",
    b"5\n",
    b"5\r",
    b"5\r\n b",
    b"5;",
    b"6",
)
SMUGGLED = (
    b"5\r\nContent-Length: 6",
    b"6\r\nContent-Length: 5",
    b"5\r\nTransfer-Encoding: chunked",
    b"5\r\n\r\nhelloGET / HTTP/1.1\r\nHost: y",
)


@pytest.mark.parametrize("digits", [*OTHER, *SMUGGLED, b"%d" % LIMIT, b"%d" % (LIMIT + 1), b"9" * DIGITS_MAX, b"9" * 30])
def test_whatever_is_no_plain_length_is_left_to_the_parser(digits: bytes) -> None:
    """Whether the parser takes it or not: both readers are of one mind, about what follows too."""
    agree(HELLO, HEAD % digits + b"hello", HELLO)
    agree(HELLO, HEAD % digits, b"hello", HELLO)
    agree(HELLO, HEAD % digits + b"h", b"ello" + HELLO)
    assert recognised(HELLO, HEAD % digits + b"hello") == 0


def test_a_body_beyond_the_limit_is_left_to_the_parser() -> None:
    """Also where all of it is there."""
    agree(HELLO, HEAD % b"%d" % (LIMIT + 1) + bytes(LIMIT + 1), HELLO)


@pytest.mark.parametrize(
    "line", [b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"Upgrade: h2c\r\nConnection: Upgrade", b"Connection: close"]
)
def test_special_heads_are_not_remembered(line: bytes) -> None:
    """What has another framing, or wants an answer before its body, is parsed each time."""
    message = HELLO.replace(b"X-A: 1", line)
    assert recognised(message, message) == 0
    agree(message, message)


def test_a_refused_head_is_not_remembered() -> None:
    """It is judged anew each time."""
    message = HELLO.replace(b"Authorization", b"X")
    assert recognised(message, message) == 0
    agree(message, message, HELLO, HELLO, message, HELLO)


@pytest.mark.parametrize("length", range(1, len(HELLO)))
def test_a_message_that_has_begun_is_never_taken_for_another(length: int) -> None:
    """A beginning of whatever length, then the known message as a piece of its own."""
    agree(HELLO, HELLO[:length], HELLO, HELLO)


@pytest.mark.parametrize("blank", [b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"\n\r", b" ", b"\0"])
def test_blanks_between_messages_change_nothing(blank: bytes) -> None:
    """The parser skips some of them: alone, before a message, or before the one that is to be remembered."""
    agree(HELLO, blank, HELLO)
    agree(blank + HELLO, HELLO, blank + HELLO, blank + HELLO)
    agree(HELLO, HELLO + blank, HELLO)


def test_a_head_that_did_not_come_whole_is_not_remembered() -> None:
    """Nor one that began in the middle of a piece: only a piece that begins with a head shows its bytes."""
    assert recognised(HELLO[:20], HELLO[20:], HELLO) == 0
    assert recognised(HELLO + HELLO) == 0
    assert recognised(HELLO + HELLO.replace(b"X-A: 1", b"X-A: 2"), HELLO) == 1


def test_only_one_line_can_be_the_length() -> None:
    """Other headers may look like it, in their names or values, and never stand in for it."""
    for line in (b"X-Content-Length: 5", b"X-A: Content-Length: 5", b"Content-Length-X: 5"):
        message = HELLO.replace(b"X-A: 1", line)
        assert recognised(message, message) == 1
        agree(message, message, message.replace(line, line[:-1] + b"6"))


def test_a_head_is_remembered_only_if_its_longest_form_is_acceptable() -> None:
    """Limits of size hold as they do for the parser; and what a connection keeps is bounded."""
    assert recognised(*[HELLO.replace(b"X-A: 1", b"X-A: " + b"x" * KNOWN_BYTES)] * 2) == 0
    head = HEAD.replace(b"X-A: 1", b"\r\n".join(b"A%d:1" % i for i in range(60)))
    for limit in range(len(head) - 30, len(head) + 80):
        messages = [head % b"5" + b"hello", head % b"1000" + b"x" * LIMIT]
        first, second = (read(reader(limit), messages, forgetful=forgetful) for forgetful in (False, True))
        assert [(e.body, e.refusal) for e in first] == [(e.body, e.refusal) for e in second]


@pytest.mark.parametrize("line", [b"X-A: 1\nA: 1", b"X-A: 1\r1", b"Content-Length: 5"])
def test_bytes_that_do_not_say_what_was_parsed_are_not_remembered(line: bytes) -> None:
    """Bare CR or LF, two lengths, another length than the parser's: were they ever accepted, they would not be relied upon."""
    head = read(reader(), [HELLO])[0].head
    assert remember(HELLO, head, b"5", 32768) is not None
    assert remember(HELLO, head, b"6", 32768) is None
    assert remember(HELLO.replace(b"X-A: 1", line), head, b"5", 32768) is None


# Anything at all.


LENGTHS = st.sampled_from([b"0", b"1", b"5", b"10", b"999", b"1000", b"1001", b"05", b"+5", b"5 ", b"5\r\nContent-Length: 5"])
HEADS = st.sampled_from(
    [
        HEAD,
        HEAD.replace(b"X-A: 1", b"X-A: 2"),
        HEAD.replace(b"Authorization", b"X"),
        HEAD.replace(b"Content-Length: %b\r\n", b"").replace(b"\r\n\r\n", b"\r\ncontent-length:%b\r\n\r\n"),
        HEAD.replace(b"1.1", b"1.0\r\nConnection: keep-alive"),
        HEAD.replace(b"X-A: 1", b"Expect: 100-continue"),
        HEAD.replace(b"X-A: 1", b"Upgrade: websocket\r\nConnection: Upgrade"),
    ]
)
CHUNKED = HEAD.replace(b"Content-Length: %b", b"Transfer-Encoding: chunked") + b"5\r\nhello\r\n0\r\n\r\n"
ROUND = st.tuples(HEADS, LENGTHS).map(lambda m: m[0] % m[1] + b"x" * int(m[1].split()[0]))
MESSAGES = st.one_of(
    st.just(HELLO), st.just(HELLO), ROUND, st.sampled_from([CHUNKED, b"\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: k\r\n\r\n"])
)


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """A message with one byte changed, lost or put in, near its head."""
    message = draw(st.one_of(st.just(HELLO), ROUND))
    at = draw(st.integers(0, len(HELLO)))
    return (
        message[:at]
        + draw(st.sampled_from([b"", b"\r", b"\n", b"0", b"5", b":", b" ", b"\0", b"A"]))
        + message[at + draw(st.integers(0, 1)) :]
    )


@st.composite
def conversation(draw: st.DrawFn) -> list[bytes]:
    """Messages, most of them alike, some broken, cut and joined anywhere."""
    messages = draw(st.lists(st.one_of(MESSAGES, MESSAGES, MESSAGES, broken()), min_size=1, max_size=8))
    pieces = [b""]
    for message in messages:
        cuts = sorted(draw(st.one_of(st.just([]), st.lists(st.integers(1, len(HEAD) + 10), max_size=3))))
        for begin, end in zip([0, *cuts], [*cuts, None], strict=True):
            if draw(st.integers(0, 4)):
                pieces.append(message[begin:end])
            else:
                pieces[-1] += message[begin:end]
    return [piece for piece in pieces if piece]


@given(conversation())
@example([HELLO, HELLO + HELLO, HELLO])
@example([HELLO, CHUNKED, HELLO, CHUNKED + HELLO, HELLO])
def test_a_memory_changes_nothing(pieces: list[bytes]) -> None:
    """Whatever comes, however it is cut: the same exchanges in the same order, and the same is awaited."""
    agree(*pieces)


# On a connection.


def known_client(test: Callable[[Listener, End], Awaitable[None]], **limits: Unpack[Limits]) -> None:
    """Run a test with a client whose head is known already."""

    async def talk() -> None:
        async with serving(echo, **limits) as listener:
            client = await connect(listener.port)
            await client.send(post(b"hello"))
            assert (await client.answer()).body == b"hello"
            [connection] = listener.server.connections
            assert connection._reader._known is not None
            await test(listener, client)
            client.leave()

    run(talk())


def test_a_recognised_request_is_answered_like_any_other() -> None:
    """Whole, in two pieces, and after and before something that is parsed."""

    async def talk(listener: Listener, client: End) -> None:
        for pieces in ((post(b"one"),), (post(b"two")[:-3], b"two"), (post(b"a") + post(b"b"),), (post(b"three"),)):
            for piece in pieces:
                await client.send(piece)
                await asyncio.sleep(0.005)
        assert [(await client.answer()).body for _ in range(5)] == [b"one", b"two", b"a", b"b", b"three"]
        assert listener.errors == []

    known_client(talk)


def test_the_body_of_a_recognised_head_must_come_in_time() -> None:
    """It is a message that is being received like any other."""

    async def talk(listener: Listener, client: End) -> None:
        await client.send(post(b"hello")[:-2])
        assert (await client.answer()).status == 408
        assert await client.closed()
        assert listener.errors == []

    known_client(talk, body_s=0.1)


def test_a_recognised_head_does_not_lift_the_limit_of_bodies() -> None:
    """A length beyond the limit is refused as if the head were new."""

    async def talk(listener: Listener, client: End) -> None:
        await client.send(POST + b"Content-Length: 10000000\r\n\r\n")
        assert (await client.answer()).status == 413
        assert await client.closed()
        assert listener.errors == []

    known_client(talk, max_body_bytes=1000)


def test_a_recognised_request_at_the_close_is_still_served() -> None:
    """A known head whose body is on its way gets its answer, which says that the connection closes."""

    async def talk(listener: Listener, client: End) -> None:
        await client.send(post(b"hello")[:-2])
        await until(lambda: any(c._reader.incoming for c in listener.server.connections))
        closing = asyncio.create_task(listener.server.close(5))
        await asyncio.sleep(0.01)
        await client.send(b"lo")
        answer = await client.answer()
        assert (answer.body, answer.headers["connection"]) == (b"hello", "close")
        await asyncio.wait_for(closing, 1)

    known_client(talk)


def test_idle_connections_with_a_known_head_close_in_time() -> None:
    """Recognised requests move the deadline of the connection, and nothing else does."""

    async def talk(listener: Listener, client: End) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(4):
            await asyncio.sleep(0.06)
            await client.send(post(b"hello"))
            assert (await client.answer()).status == 200
        started = loop.time()
        assert await client.closed()
        assert 0.09 < loop.time() - started < 1
        assert not listener.server.connections

    known_client(talk, keep_alive_s=0.1)
