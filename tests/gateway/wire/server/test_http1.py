"""The client's side of the wire: how requests are read, connections kept, answers framed, and servers closed."""

import asyncio

import pytest

from fairlane.gateway.wire import reader
from fairlane.gateway.wire.exchange import Exchange
from tests.gateway.wire.server.asking import Nowhere, ask, chunked, echo, post
from tests.gateway.wire.sockets import GET, connect, run, serving, until

# Reading.


def test_a_request_is_handed_up_whole() -> None:
    """Target, path, query, lower-case header names, repeated headers and the body reach the exchange."""
    seen: list[Exchange] = []

    async def serve(exchange: Exchange) -> None:
        seen.append(exchange)
        echo(exchange)

    ask(post(b"hello", b"X-A: 1", b"x-a:  2 ", b"Authorization: Bearer k"), serve=serve)
    [got] = seen
    head = got.head
    assert (head.method, head.target, head.path, head.query) == ("POST", b"/v1/chat/completions?a=1", "/v1/chat/completions", b"a=1")
    assert head.headers == {b"host": b"x", b"x-a": b"1, 2 ", b"authorization": b"Bearer k"}
    assert (got.body, got.peer, head.http_10, head.keep_alive) == (b"hello", "127.0.0.1", False, True)


@pytest.mark.parametrize("message", [post(b'{"a":"\xe4\xbd\xa0\xe5\xa5\xbd"}'), chunked(b'{"a":', b'"\xe4\xbd\xa0', b'\xe5\xa5\xbd"}')])
def test_a_request_survives_any_split(message: bytes) -> None:
    """Cut in two at every offset, or into single bytes, a request reads the same."""
    splits = [(message[:i], message[i:]) for i in range(1, len(message))]
    for pieces in [*splits, tuple(message[i : i + 1] for i in range(len(message)))]:
        got = _read(*pieces)
        assert [e.body for e in got] == ['{"a":"你好"}'.encode()], pieces
        assert got[0].keep_alive
        assert got[0].head.path == "/v1/chat/completions"


def test_single_bytes_over_a_socket_are_understood() -> None:
    """One byte in each segment is a request like any other."""
    message = post(b"hello")
    [answer] = ask(*(message[i : i + 1] for i in range(len(message))), closed=False)
    assert answer.body == b"hello"


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/a/b?c=d?e", "/a/b", b"c=d?e"),
        (b"//v1/models", "//v1/models", b""),
        (b"/%2e%2e/x", "/%2e%2e/x", b""),
        (b"http://127.0.0.1:9/v1/x?y", "/v1/x", b"y"),
        (b"http://evil", "/", b""),
        (b"*", "*", b""),
    ],
)
def test_fc_50_the_path_is_what_follows_the_authority(target: bytes, path: str, query: bytes) -> None:
    """An absolute target names a path and nothing else; nothing is decoded."""
    [got] = _read(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % target)
    assert (got.head.path, got.head.query, got.head.target) == (path, query, target)


def _read(*pieces: bytes, max_body_bytes: int = 1 << 20, max_header_bytes: int = 4096) -> list[Exchange]:
    """Read requests without a socket."""
    intake = reader.Intake(lambda _: None, lambda *_: (b"", b""), lambda *_: None, max_body_bytes, max_header_bytes)
    request_reader = reader.RequestReader(intake, Nowhere())
    for piece in pieces:
        if not request_reader.deaf:
            request_reader.feed(piece)
    return request_reader.complete


# Connections that stay and connections that close.


@pytest.mark.parametrize(
    ("head", "line", "closed"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", None, False),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "close", True),
        (b"GET / HTTP/1.0\r\n\r\n", "close", True),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "keep-alive", False),
    ],
)
def test_the_connection_stays_open_as_the_client_wishes(head: bytes, line: str | None, closed: bool) -> None:
    """HTTP/1.1 keeps it unless told otherwise, HTTP/1.0 only when asked."""
    [answer] = ask(head, closed=closed)
    assert answer.headers.get("connection") == line


def test_pipelined_requests_are_answered_in_order() -> None:
    """Several requests in one piece run one after the other, however long each takes."""
    running = 0

    async def serve(exchange: Exchange) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0.02 if exchange.head.path == "/0" else 0)
        running -= 1
        exchange.respond(200, b"", exchange.head.path.encode())

    requests = b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % i for i in range(5))
    assert [a.body for a in ask(requests, serve=serve, answers=5, closed=False)] == [b"/0", b"/1", b"/2", b"/3", b"/4"]


def test_requests_that_arrive_while_one_runs_wait_unparsed() -> None:
    """Bytes that come during a request are held, split anywhere, and parsed after it."""

    async def talk() -> None:
        gate = asyncio.Event()

        async def serve(exchange: Exchange) -> None:
            await gate.wait()
            exchange.respond(200, b"", exchange.head.path.encode() + exchange.body)

        async with serving(serve) as listener:
            client = await connect(listener.port)
            await client.send(GET)
            await until(lambda: listener.tasks)
            second = post(b"body") + GET
            await client.send(second[:20])
            await asyncio.sleep(0.01)
            await client.send(second[20:])
            await asyncio.sleep(0.01)
            gate.set()
            assert [(await client.answer()).body for _ in range(3)] == [b"/", b"/v1/chat/completionsbody", b"/"]
            client.leave()

    run(talk())


# Answering.


def test_a_whole_answer_is_one_write() -> None:
    """Head and body of an answer, and the head with the first piece of a stream, leave together."""

    async def talk() -> None:
        pieces: list[bytes] = []

        class Watching(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                pieces.append(data)

        async def serve(exchange: Exchange) -> None:
            if exchange.head.path == "/whole":
                exchange.respond(200, b"a: b\r\n", b"body")
            elif exchange.head.path == "/stream":
                exchange.start(200, b"", None)
                exchange.write(b"one")
                await asyncio.sleep(0.02)
                exchange.end(b"two")
            else:
                exchange.start(200, b"", None)
                await asyncio.sleep(0.02)
                exchange.end()

        async with serving(serve) as listener:
            for path, wanted in (
                (b"/whole", [b"HTTP/1.1 200 OK\r\na: b\r\ncontent-length: 4\r\n\r\nbody"]),
                (b"/stream", [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n", b"3\r\ntwo\r\n0\r\n\r\n"]),
                (b"/late", [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"0\r\n\r\n"]),
            ):
                pieces.clear()
                transport, _ = await asyncio.get_running_loop().create_connection(Watching, "127.0.0.1", listener.port)
                transport.write(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
                await until(lambda wanted=wanted: b"".join(pieces) == b"".join(wanted))  # type: ignore[misc]
                assert pieces == wanted
                transport.close()

    run(talk())


async def stream(exchange: Exchange) -> None:
    """Answer in two pieces of unknown length."""
    exchange.start(200, b"", None)
    exchange.write(b"one ")
    exchange.write(b"")
    await asyncio.sleep(0)
    exchange.write(b"two")
    exchange.end()


def test_a_stream_is_chunked() -> None:
    """HTTP/1.1 gets chunks and keeps the connection; an empty piece does not end it."""
    [answer] = ask(GET, serve=stream)
    assert (answer.body, answer.cut, answer.headers) == (b"one two", False, {"transfer-encoding": "chunked"})


def test_http_1_0_gets_a_stream_until_close() -> None:
    """HTTP/1.0 knows no chunks: the end of the connection is the end of the answer, even where it asked to keep it."""
    [answer] = ask(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", serve=stream)
    assert (answer.body, answer.headers) == (b"one two", {"connection": "close"})


def test_an_answer_shorter_than_declared_is_broken_off() -> None:
    """A promise of more bytes than were written never looks kept."""

    async def serve(exchange: Exchange) -> None:
        exchange.start(200, b"", 10)
        exchange.write(b"12345")
        exchange.end()

    [answer] = ask(GET, serve=serve, closed=True)
    assert (answer.body, answer.cut) == (b"12345", True)


def test_nothing_is_written_after_the_end() -> None:
    """A late piece of one answer never gets into the next."""

    async def serve(exchange: Exchange) -> None:
        exchange.respond(200, b"", exchange.head.path.encode())
        exchange.write(b"late")
        exchange.end(b"later")
        exchange.abort()

    assert [answer.body for answer in ask(GET + GET, serve=serve, answers=2)] == [b"/", b"/"]


@pytest.mark.parametrize("request_line", [b"HEAD / HTTP/1.1", b"GET /empty HTTP/1.1"])
def test_answers_without_a_body_have_none(request_line: bytes) -> None:
    """HEAD and 204 get a head alone, and the next answer follows it directly."""

    async def serve(exchange: Exchange) -> None:
        if exchange.head.path == "/empty":
            exchange.respond(204, b"", b"")
        elif exchange.head.method == "HEAD":
            exchange.respond(200, b"", b"12345")
        else:
            exchange.respond(200, b"", b"next")

    async def talk() -> None:
        async with serving(serve) as listener:
            client = await connect(listener.port)
            await client.send(request_line + b"\r\nHost: x\r\n\r\n" + GET)
            first = await client.answer(head_only=True)
            assert first.headers.get("content-length") == ("5" if request_line.startswith(b"HEAD") else None)
            assert (await client.answer()).body == b"next"
            client.leave()

    run(talk())


@pytest.mark.parametrize("head", [GET, b"GET / HTTP/1.0\r\n\r\n"])
def test_a_broken_answer_looks_broken(head: bytes) -> None:
    """After `abort` the client sees a cut: no last chunk, or a reset where closing would look like the end."""

    async def serve(exchange: Exchange) -> None:
        exchange.start(200, b"", None)
        exchange.write(b"part")
        await asyncio.sleep(0.02)
        exchange.abort()
        exchange.write(b"never")
        exchange.end()

    [answer] = ask(head, serve=serve, closed=True)
    assert (answer.body, answer.cut) in {(b"part", True), (b"", True)}


def test_answering_twice_is_a_mistake_that_is_reported() -> None:
    """A second answer raises, and the client has the first."""

    async def talk() -> None:
        async def serve(exchange: Exchange) -> None:
            exchange.respond(200, b"", b"first")
            exchange.respond(200, b"", b"second")

        async with serving(serve) as listener:
            client = await connect(listener.port)
            await client.send(GET)
            assert (await client.answer()).body == b"first"
            await until(lambda: listener.errors)
            assert isinstance(listener.errors[0], RuntimeError)
            client.leave()

    run(talk())


# Shutting down.


def test_closing_lets_the_present_request_finish() -> None:
    """Idle connections close at once, a busy one after its answer, which says so; nothing new is begun on it."""

    async def talk() -> None:
        gate = asyncio.Event()

        async def serve(exchange: Exchange) -> None:
            await gate.wait()
            echo(exchange)

        async with serving(serve) as listener:
            idle, busy = await connect(listener.port), await connect(listener.port)
            await busy.send(post(b"hello") + GET)
            await until(lambda: listener.tasks and len(listener.server.connections) == 2)
            closing = asyncio.create_task(listener.server.close(5))
            assert await idle.closed()
            assert not closing.done()
            gate.set()
            answer = await busy.answer()
            assert (answer.body, answer.headers["connection"]) == (b"hello", "close")
            assert await busy.closed()
            await asyncio.wait_for(closing, 1)
            idle.leave()
            busy.leave()

    run(talk())


def test_a_request_that_is_arriving_at_the_close_is_still_served() -> None:
    """Its answer says that the connection closes."""

    async def talk() -> None:
        async with serving(echo) as listener:
            client = await connect(listener.port)
            message = post(b"hello")
            await client.send(message[:-2])
            await until(lambda: any(c._reader.incoming for c in listener.server.connections))
            closing = asyncio.create_task(listener.server.close(5))
            await asyncio.sleep(0.01)
            await client.send(message[-2:])
            answer = await client.answer()
            assert (answer.body, answer.headers["connection"]) == (b"hello", "close")
            await asyncio.wait_for(closing, 1)

    run(talk())


def test_closing_cuts_off_what_does_not_finish() -> None:
    """After `drain_s` the connection is cut and the task cancelled."""

    async def talk() -> None:
        cancelled: list[bool] = []

        async def serve(exchange: Exchange) -> None:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                cancelled.append(exchange.gone)
                raise

        async with serving(serve) as listener:
            client = await connect(listener.port)
            await client.send(GET)
            await until(lambda: listener.tasks)
            await listener.server.close(0.05)
            assert cancelled == [True]
            assert not listener.server.connections
            client.leave()

    run(talk())
