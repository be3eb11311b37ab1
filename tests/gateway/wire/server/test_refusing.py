"""What the client's side of the wire refuses, before anything runs and without harm to anyone."""

import asyncio

import pytest

from fairlane.errors import Reason
from fairlane.gateway.wire import http1, reader
from fairlane.gateway.wire.exchange import Exchange, Refusal
from tests.gateway.wire.server.asking import ask, chunked, echo, post
from tests.gateway.wire.sockets import GET, POST, connect, run, serving, until

BAD_HEADS = [
    (b"\x16\x03\x01\x02\x00\x01\x00", 400),
    (b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET /\r\n\r\n", 505),
    (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", 400),
    (b"GET / HTTP/1.1\nHost: x\n\n", 400),
    (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\nhello", 405),
    (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    (POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n", 400),
    (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400),
    (POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
]
BAD_LENGTHS = [b"abc", b"-1", b"+3", b"", b"3, 3", b"3\r\nContent-Length: 3", b"3\r\nContent-Length: 4", b"99999999999999999999999"]


@pytest.mark.parametrize(("head", "status"), BAD_HEADS)
def test_what_is_no_http_is_refused_once(head: bytes, status: int) -> None:
    """Every broken head gets one answer in the gateway's own form, and the connection closes."""
    [answer] = ask(head, closed=True)
    assert (answer.status, answer.headers["connection"]) == (status, "close")


@pytest.mark.parametrize("length", BAD_LENGTHS)
def test_fc_44_a_length_that_is_none_is_refused(length: bytes) -> None:
    """Content-Length must be one whole number, said once."""
    [answer] = ask(POST + b"Content-Length: " + length + b"\r\n\r\nabc", closed=True)
    assert (answer.status, answer.code) == (400, Reason.INVALID_REQUEST)


def test_fc_44_a_declared_length_beyond_the_limit_is_refused_before_the_body() -> None:
    """413 comes without a byte of the body, and also to a client that sends it all before it reads."""
    head = POST + b"Content-Length: 10485760\r\n\r\n"
    for pieces in ((head,), (head, bytes(10 << 20))):
        [answer] = ask(*pieces, closed=True)
        assert (answer.status, answer.code, answer.headers["connection"]) == (413, Reason.BODY_TOO_LARGE, "close")


def test_fc_44_chunks_beyond_the_limit_are_refused_once_it_has_passed() -> None:
    """A body without a declared length is counted, and no more of it than the limit is kept."""
    [answer] = ask(POST + b"Transfer-Encoding: chunked\r\n\r\n", *[b"10000\r\n" + bytes(65536) + b"\r\n"] * 160, closed=True)
    assert (answer.status, answer.code) == (413, Reason.BODY_TOO_LARGE)


def test_fc_44_bytes_beyond_the_declared_length_are_no_body() -> None:
    """The request is served with what it declared; what follows is a request of its own, and a bad one."""
    first, second = ask(POST + b"Content-Length: 10\r\n\r\n" + b"x" * (10 << 20), answers=2, closed=True)
    assert (first.status, first.body, second.status) == (200, b"x" * 10, 400)


def test_a_body_of_exactly_the_limit_is_taken() -> None:
    """The limit is the largest size that is accepted, declared or in chunks."""
    body = b"x" * 1000
    for message in (post(body), chunked(body[:500], body[500:])):
        [answer] = ask(message, max_body_bytes=1000, closed=False)
        assert answer.body == body
    [answer] = ask(chunked(body, b"y"), max_body_bytes=1000, closed=True)
    assert answer.status == 413


def test_a_small_body_that_is_too_large_costs_no_connection() -> None:
    """What is cheap to read is read, and the connection stays."""
    [answer] = ask(post(b"x" * 2000), max_body_bytes=1000, closed=False)
    assert answer.status == 413


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 5000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 1000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 100 + b"\r\n",
        b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 5000,
        b"GET /" + b"a" * 5000,
    ],
)
def test_heads_are_bounded(head: bytes) -> None:
    """A head beyond the limit, finished or not, in one piece or in many, is 431."""
    for pieces in ((head,), [head[i : i + 500] for i in range(0, len(head), 500)]):
        [answer] = ask(*pieces, max_header_bytes=4096, closed=True)
        assert (answer.status, answer.code) == (431, Reason.HEADERS_TOO_LARGE)


def test_a_large_body_in_the_piece_of_its_head_is_no_large_head() -> None:
    """Only the head counts as one."""
    [answer] = ask(post(b"x" * 50_000), max_header_bytes=1024, closed=False)
    assert answer.status == 200


@pytest.mark.parametrize("flood", [b"1;" + b"x" * 200_000, b"0\r\n" + b"x: y\r\n" * 40_000, b"0\r\nx: " + b"y" * 200_000])
def test_framing_without_a_body_is_bounded(flood: bytes) -> None:
    """Chunk extensions and trailers without end are cut off."""
    message = POST + b"Transfer-Encoding: chunked\r\n\r\n" + flood
    pieces = [message[i : i + 1000] for i in range(0, len(message), 1000)]
    [answer] = ask(*pieces, max_header_bytes=4096, closed=True)
    assert answer.status == 400


def test_trailers_and_extensions_are_ignored() -> None:
    """A few are legal, and never become headers."""
    seen: list[dict[bytes, bytes]] = []

    async def serve(exchange: Exchange) -> None:
        seen.append(exchange.head.headers)
        echo(exchange)

    message = POST + b"Transfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nAuthorization: other\r\n\r\n"
    [answer] = ask(message, serve=serve, closed=False)
    assert answer.body == b"abc"
    assert b"authorization" not in seen[0]


def test_what_a_client_sends_ahead_is_bounded() -> None:
    """A client that pipelines without end while a request runs is not read beyond a bound, and served when its turn comes."""

    async def talk() -> None:
        gate = asyncio.Event()

        async def serve(exchange: Exchange) -> None:
            await gate.wait()
            exchange.respond(200, b"", b"%d" % len(exchange.body))

        async with serving(serve, max_body_bytes=1 << 26) as listener:
            client = await connect(listener.port)
            await client.send(GET)
            await until(lambda: listener.tasks)
            client.writer.write(post(bytes(32 << 20)))
            [connection] = listener.server.connections
            await until(lambda: not connection.transport.is_reading())
            assert len(connection._held) < http1.HELD_BYTES + 512 * 1024
            gate.set()
            assert (await client.answer()).body == b"0"
            assert (await client.answer()).body == b"%d" % (32 << 20)
            client.leave()

    run(talk())


def test_too_many_requests_in_one_piece_end_the_connection() -> None:
    """A flood of tiny requests is parsed ahead to a bound; those are answered, the last with a goodbye."""
    flood = GET * (reader.AHEAD + 40)
    answers = ask(flood, answers=reader.AHEAD, closed=True)
    assert [a.status for a in answers] == [200] * reader.AHEAD
    assert answers[-1].headers["connection"] == "close"


# Early refusals and Expect.


def refuse_strangers(exchange: Exchange) -> Refusal | None:
    """Refuse who has no key."""
    return None if b"authorization" in exchange.head.headers else (401, b"a: b\r\n", b"who?")


def test_an_early_refusal_of_a_small_request_keeps_the_connection() -> None:
    """The body is read and dropped, nothing is served, and the next request is."""

    async def serve(exchange: Exchange) -> None:
        assert b"authorization" in exchange.head.headers
        echo(exchange)

    messages = post(b"secret"), post(b"hello", b"Authorization: k"), GET
    answers = ask(*messages, serve=serve, early=refuse_strangers, answers=3)
    assert [(a.status, a.body) for a in answers] == [(401, b"who?"), (200, b"hello"), (401, b"who?")]


@pytest.mark.parametrize("head", [b"Content-Length: 1000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"])
def test_an_early_refusal_does_not_wait_for_a_large_body(head: bytes) -> None:
    """Where much may follow the answer comes at once, and the connection closes."""
    [answer] = ask(POST + head, early=refuse_strangers, closed=True)
    assert (answer.status, answer.headers["connection"]) == (401, "close")


def test_a_refused_client_that_goes_on_sending_can_still_read_the_answer() -> None:
    """The rest is swallowed for a while, so that no reset destroys the answer."""
    [answer] = ask(POST + b"Content-Length: 1000000\r\n\r\n", *[bytes(50_000)] * 20, early=refuse_strangers, closed=True)
    assert answer.status == 401


def test_a_refused_client_that_never_stops_is_closed() -> None:
    """Swallowing ends after a while."""

    async def talk() -> None:
        async with serving(echo, early=refuse_strangers) as listener:
            client = await connect(listener.port)
            await client.send(POST + b"Content-Length: 1000000\r\n\r\n")
            started = asyncio.get_running_loop().time()
            assert (await client.answer()).status == 401
            await until(lambda: not listener.server.connections)
            assert 1.5 < asyncio.get_running_loop().time() - started < 3
            client.leave()

    run(talk())


def test_a_refused_client_that_reads_slowly_is_closed_too() -> None:
    """The time in which it may go on sending is not lengthened by the answer's leaving late."""

    async def talk() -> None:
        async with serving(echo, early=lambda _: (401, b"", bytes(8 << 20))) as listener:
            client = await connect(listener.port, receive_bytes=8192)
            await client.send(POST + b"Content-Length: 1000000\r\n\r\n")
            await asyncio.sleep(0.1)
            answer = await client.answer()
            assert (answer.status, len(answer.body)) == (401, 8 << 20)
            await until(lambda: not listener.server.connections)
            client.leave()

    run(talk())


def test_a_mistake_in_the_early_judgement_is_a_500() -> None:
    """It is reported, and not taken for a fault of the client's; the connection stays."""

    async def talk() -> None:
        def stumble(exchange: Exchange) -> Refusal | None:
            if exchange.head.headers[b"host"] == b"bad":
                raise ValueError("stumbled")
            return None

        async with serving(echo, early=stumble) as listener:
            client = await connect(listener.port)
            await client.send(post(b"hello").replace(b"Host: x", b"Host: bad") + GET)
            answer = await client.answer()
            assert (answer.status, answer.code) == (500, Reason.INTERNAL)
            assert [str(error) for error in listener.errors] == ["stumbled"]
            assert (await client.answer()).status == 200

    run(talk())


def test_an_early_refusal_waits_for_its_turn() -> None:
    """Refusals of pipelined requests come in their order too."""

    async def serve(exchange: Exchange) -> None:
        await asyncio.sleep(0.02)
        echo(exchange)

    messages = post(b"1", b"Authorization: k") + post(b"2") + post(b"3", b"Authorization: k") + POST + b"Content-Length: 100000\r\n\r\n"
    answers = ask(messages, serve=serve, early=refuse_strangers, answers=4, closed=True)
    assert [(a.status, a.body) for a in answers] == [(200, b"1"), (401, b"who?"), (200, b"3"), (401, b"who?")]


def test_fc_45_a_welcome_body_is_asked_for() -> None:
    """`Expect: 100-continue` is answered at once, then the request is served."""

    async def talk() -> None:
        async with serving(echo, early=refuse_strangers) as listener:
            client = await connect(listener.port)
            for _ in range(2):
                await client.send(POST + b"Authorization: k\r\nExpect: 100-Continue\r\nContent-Length: 5\r\n\r\n")
                assert (await client.answer()).status == 100
                for piece in (b"he", b"ll", b"o"):
                    await client.send(piece)
                    await asyncio.sleep(0.01)
                assert (await client.answer()).body == b"hello"
            client.leave()

    run(talk())


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n", 401),
        (b"Authorization: k\r\nExpect: 100-continue\r\nContent-Length: 2000000\r\n\r\n", 413),
    ],
)
def test_fc_45_an_unwelcome_body_is_not_asked_for(lines: bytes, status: int) -> None:
    """The final answer comes instead of 100, and the connection closes."""
    [answer] = ask(POST + lines, early=refuse_strangers, closed=True)
    assert answer.status == status


def test_fc_45_http_1_0_is_not_told_to_continue() -> None:
    """HTTP/1.0 knows no 100: the expectation is ignored."""

    async def talk() -> None:
        async with serving(echo) as listener:
            client = await connect(listener.port)
            await client.send(b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
            await asyncio.sleep(0.02)
            await client.send(b"hello")
            answer = await client.answer()
            assert (answer.status, answer.body) == (200, b"hello")
            client.leave()

    run(talk())


def test_continue_is_not_said_into_another_answer() -> None:
    """A pipelined request with an expectation is told to go on only after the answer before it."""

    async def talk() -> None:
        async def serve(exchange: Exchange) -> None:
            await asyncio.sleep(0.02)
            echo(exchange)

        async with serving(serve) as listener:
            client = await connect(listener.port)
            await client.send(post(b"first") + POST + b"Expect: 100-continue\r\nContent-Length: 6\r\n\r\n")
            assert (await client.answer()).body == b"first"
            assert (await client.answer()).status == 100
            await client.send(b"second")
            assert (await client.answer()).body == b"second"
            client.leave()

    run(talk())


@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c"])
def test_an_offer_to_upgrade_is_ignored(upgrade: bytes) -> None:
    """The request is served as plain HTTP/1.1, body included, and the connection goes on."""
    lines = b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: " + upgrade, b"HTTP2-Settings: AAMAAABk"
    message = post(b"hello", *lines)
    for pieces in ((message,), (message[:-3], message[-3:]), tuple(message[i : i + 1] for i in range(len(message)))):
        [answer] = ask(*pieces, closed=False)
        assert (answer.status, answer.body) == (200, b"hello")
