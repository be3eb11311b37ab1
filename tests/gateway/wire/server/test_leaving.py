"""Clients that leave, stall or come in masses, and servers that fail: nothing hangs, nothing is left behind."""

import asyncio
import socket

import pytest

from fairlane.errors import Reason
from fairlane.gateway.wire import http1
from fairlane.gateway.wire.exchange import Exchange
from tests.gateway.wire.server.asking import echo, post
from tests.gateway.wire.sockets import GET, POST, Limits, connect, flushed, run, serving, until

# Clients that leave, and servers that fail.


@pytest.mark.parametrize("stage", ["head", "body", "waiting", "streaming", "flushing"])
@pytest.mark.parametrize("reset", [False, True])
def test_fc_04_a_client_that_leaves_cancels_its_request_once(stage: str, reset: bool) -> None:
    """At every stage the connection is forgotten, and a task that runs is cancelled exactly once."""

    async def talk() -> None:
        cancelled: list[bool] = []

        async def serve(exchange: Exchange) -> None:
            try:
                if stage == "streaming":
                    exchange.start(200, b"", None)
                    exchange.write(b"part")
                if stage == "flushing":
                    exchange.respond(200, b"", bytes(1 << 25))
                    await flushed(exchange)
                    cancelled.append(exchange.gone)
                    return
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                cancelled.append(exchange.gone)
                raise

        async with serving(serve) as listener:
            client = await connect(listener.port)
            message = post(b"hello")
            await client.send({"head": message[:20], "body": message[:-2]}.get(stage, message))
            if stage == "streaming":
                await client.line_block()
            elif stage in ("waiting", "flushing"):
                await until(lambda: listener.tasks)
            else:
                await until(lambda: listener.server.connections)
            await asyncio.sleep(0.01)
            if reset:
                client.reset()
            else:
                client.leave()
            await until(lambda: not listener.server.connections and not listener.tasks)
            assert cancelled == ([] if stage in ("head", "body") else [True])
            assert listener.errors == []

    run(talk())


def test_writing_to_a_client_that_left_is_harmless() -> None:
    """Every way of answering is a no-op once the client is gone."""

    async def talk() -> None:
        done = asyncio.Event()

        async def serve(exchange: Exchange) -> None:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                exchange.start(200, b"", None)
                exchange.write(b"a")
                exchange.end(b"b")
                exchange.abort()
                await flushed(exchange)
                done.set()
                raise

        async with serving(serve) as listener:
            client = await connect(listener.port)
            await client.send(GET)
            await until(lambda: listener.tasks)
            client.leave()
            await asyncio.wait_for(done.wait(), 5)

    run(talk())


@pytest.mark.parametrize("how", ["raises", "returns", "raises after the start", "returns after the start"])
def test_a_request_without_an_answer_gets_one(how: str) -> None:
    """A mistake of the gateway's becomes a 500 or a visible cut, and is reported."""

    async def talk() -> None:
        def serve(exchange: Exchange) -> None:
            if "start" in how:
                exchange.start(200, b"", None)
                exchange.write(b"part")
            if "raises" in how:
                raise ValueError(how)

        async with serving(serve) as listener:
            client = await connect(listener.port)
            await client.send(GET)
            answer = await client.answer()
            if "start" in how:
                assert (answer.body, answer.cut) == (b"part", True)
            else:
                assert (answer.status, answer.code) == (500, Reason.INTERNAL)
            assert await client.closed()
            assert [str(e) for e in listener.errors] == ([how] if "raises" in how else [])
            client.leave()

    run(talk())


# Limits in number and time.


def test_connections_beyond_the_limit_are_told_so() -> None:
    """They get a 503 without a request and are closed; the others go on, and a place that becomes free is given again."""

    async def talk() -> None:
        async with serving(echo, max_connections=2) as listener:
            clients = [await connect(listener.port) for _ in range(2)]
            await until(lambda: len(listener.server.connections) == 2)
            extra = await connect(listener.port)
            assert (await extra.answer()).status == 503
            assert await extra.closed()
            extra.leave()
            await clients[0].send(GET)
            assert (await clients[0].answer()).status == 200
            clients[0].leave()
            await until(lambda: len(listener.server.connections) == 1)
            again = await connect(listener.port)
            await again.send(GET)
            assert (await again.answer()).status == 200
            again.leave()
            clients[1].leave()

    run(talk())


def test_a_flood_of_connections_is_cut_off() -> None:
    """Far beyond the limit nobody is told anything, so that telling costs no memory."""

    async def talk() -> None:
        async with serving(echo, max_connections=1) as listener:
            clients = [await connect(listener.port) for _ in range(http1.SPARE_CONNECTIONS + 10)]
            ends = await asyncio.gather(*(client.rest() for client in clients[1:]))
            told = sum(end.startswith(b"HTTP/1.1 503") for end in ends)
            assert told <= http1.SPARE_CONNECTIONS
            assert len(listener.server.connections) <= 1 + http1.SPARE_CONNECTIONS
            for client in clients:
                client.leave()

    run(talk())


@pytest.mark.parametrize(
    ("sent", "limits", "status"),
    [
        (b"", {"header_s": 0.1}, None),
        (b"GET / HT", {"header_s": 0.1}, 408),
        (POST + b"Content-Length: 5\r\n\r\nhel", {"body_s": 0.1}, 408),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhel", {"body_s": 0.1}, 408),
        (GET, {"keep_alive_s": 0.1}, 200),
    ],
)
def test_slow_clients_are_closed(sent: bytes, limits: Limits, status: int | None) -> None:
    """A head, a body or the next request that does not come in time ends the connection."""

    async def talk() -> None:
        async with serving(echo, **(Limits(header_s=5, body_s=5, keep_alive_s=5) | limits)) as listener:
            client = await connect(listener.port)
            started = asyncio.get_running_loop().time()
            await client.send(sent)
            if status is not None:
                assert (await client.answer()).status == status
            assert await client.closed()
            assert 0.09 < asyncio.get_running_loop().time() - started < 1
            client.leave()

    run(talk())


def test_a_head_must_be_whole_in_time_but_a_body_only_move() -> None:
    """Drops of a head do not extend its time; each byte of a body does."""

    async def talk() -> None:
        async with serving(echo, header_s=0.15, body_s=0.15) as listener:
            client = await connect(listener.port)
            message = post(b"hello")
            await client.send(message[:-5])
            for byte in b"hello":
                await asyncio.sleep(0.06)
                await client.send(bytes([byte]))
            assert (await client.answer()).body == b"hello"
            started = asyncio.get_running_loop().time()
            for byte in message[:4]:
                await client.send(bytes([byte]))
                await asyncio.sleep(0.045)
            assert (await client.answer()).status == 408
            assert asyncio.get_running_loop().time() - started < 0.25
            client.leave()

    run(talk())


def test_a_running_request_outlasts_every_limit_of_the_wire() -> None:
    """No limit of reading or idling touches a request that is being served."""

    async def talk() -> None:
        async def serve(exchange: Exchange) -> None:
            await asyncio.sleep(0.3)
            echo(exchange)

        async with serving(serve, header_s=0.05, body_s=0.05, keep_alive_s=0.05) as listener:
            client = await connect(listener.port)
            await client.send(post(b"hello"))
            assert (await client.answer()).body == b"hello"
            assert await client.closed()
            client.leave()

    run(talk())


def test_one_timer_serves_a_busy_connection() -> None:
    """Requests in quick succession arm no timer each: the one of the connection stays where it is."""

    async def talk() -> None:
        async with serving(echo) as listener:
            client = await connect(listener.port)
            timers = set()
            for _ in range(20):
                await client.send(GET)
                await client.answer()
                [connection] = listener.server.connections
                timers.add(connection._timer)
            assert len(timers) == 1
            client.leave()

    run(talk())


# Slow readers.


class Tap:
    """The source of an answer that notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")


def test_fc_24_a_full_send_buffer_stops_the_source() -> None:
    """The source is paused while the client does not read and resumed when it does; `flushed` returns after the last byte."""

    async def talk() -> None:
        tap = Tap()
        done = asyncio.Event()

        async def serve(exchange: Exchange) -> None:
            exchange.flow = tap
            exchange.start(200, b"", None)
            while not tap.calls:
                exchange.write(bytes(65536))
                await asyncio.sleep(0)
            assert exchange.paused
            await until(lambda: tap.calls == ["pause", "resume"])
            assert not exchange.paused
            exchange.end(bytes(200_000))
            await flushed(exchange)
            assert exchange._wire.transport.get_write_buffer_size() == 0
            done.set()

        async with serving(serve) as listener:
            client = await connect(listener.port, receive_bytes=8192)
            await client.send(GET)
            await until(lambda: tap.calls)
            await asyncio.sleep(0.05)
            assert tap.calls == ["pause"]
            await client.answer()
            await asyncio.wait_for(done.wait(), 5)
            await client.send(GET)
            client.leave()

    run(talk())


def test_fc_24_a_stalled_reader_is_dropped() -> None:
    """A client that takes nothing for `stall_s` is cut off and its request cancelled, while it streams and after."""

    async def talk() -> None:
        ends: list[str] = []

        async def serve(exchange: Exchange) -> None:
            try:
                if exchange.head.path == "/whole":
                    exchange.respond(200, b"", bytes(32 << 20))
                    await flushed(exchange)
                    ends.append("gone" if exchange.gone else "flushed")
                    return
                exchange.start(200, b"", None)
                while True:
                    if not exchange.paused:
                        exchange.write(bytes(65536))
                    await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        async with serving(serve, stall_s=0.2) as listener:
            for path in (b"/whole", b"/stream"):
                client = await connect(listener.port, receive_bytes=8192)
                await client.send(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
                await until(lambda: listener.server.connections)
                await until(lambda: not listener.server.connections and not listener.tasks)
                client.leave()
        assert ends == ["gone", "cancelled"]

    run(talk())


def test_fc_24_a_reader_that_stalls_after_a_while_is_dropped() -> None:
    """Progress once does not excuse standing still later."""

    async def talk() -> None:
        async def serve(exchange: Exchange) -> None:
            exchange.respond(200, b"", bytes(32 << 20))
            await flushed(exchange)

        async with serving(serve, stall_s=0.2) as listener:
            client = await connect(listener.port, receive_bytes=8192)
            await client.send(GET)
            await client.reader.readexactly(8 << 20)
            await until(lambda: not listener.server.connections)

    run(talk())


@pytest.mark.parametrize("line", [b"", b"Connection: close\r\n"])
def test_fc_24_a_slow_reader_is_no_stalled_one(line: bytes) -> None:
    """Who reads a little within each `stall_s` keeps its answer, however long it takes, and also where it is the last."""
    size = 12 << 20

    async def talk() -> None:
        async def serve(exchange: Exchange) -> None:
            exchange.respond(200, b"", bytes(size))
            await flushed(exchange)

        async with serving(serve, stall_s=0.3) as listener:
            loop = asyncio.get_running_loop()
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
                client.setblocking(False)
                await loop.sock_connect(client, ("127.0.0.1", listener.port))
                await loop.sock_sendall(client, GET[:-2] + line + b"\r\n")
                got, started = 0, loop.time()
                while got < size:
                    await asyncio.sleep(0.03)
                    piece = await loop.sock_recv(client, 1 << 18)
                    assert piece
                    got += len(piece)
                assert loop.time() - started > 1

    run(talk())


def test_fc_24_a_request_behind_an_unread_answer_has_its_time_from_then_on() -> None:
    """While an answer is waiting to be read its reader is not hurried; after it the rest of the next message must come."""

    async def talk() -> None:
        def serve(exchange: Exchange) -> None:
            exchange.respond(200, b"", bytes(32 << 20))

        async with serving(serve, body_s=0.1) as listener:
            client = await connect(listener.port, receive_bytes=8192)
            await client.send(GET + post(b"hello")[:-2])
            await asyncio.sleep(0.3)
            answer = await client.answer()
            assert (len(answer.body), answer.cut) == (32 << 20, False)
            started = asyncio.get_running_loop().time()
            assert (await client.answer()).status == 408
            assert asyncio.get_running_loop().time() - started < 1
            assert await client.closed()

    run(talk())
