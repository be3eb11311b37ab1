"""Connections to engines: made in bounded time, kept just long enough, closed without a trace; and small pages over them."""

import asyncio
import contextlib
import socket
import ssl
import time

import pytest

from fairlane.gateway.wire.upstream import ConnectFailed, EnginePool, fetch
from tests.gateway.wire.passages import Recorder, ask, ask_engine, play
from tests.gateway.wire.sockets import CHUNKED, OK, REQUEST, Peer, Script, engine, run, says, until

# Keeping connections.


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (OK, True),
        (CHUNKED + b"2\r\nok\r\n0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", True),
        (OK + b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad", False),
        (OK + b"x", False),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nokmore", False),
    ],
)
def test_a_connection_is_kept_if_it_can_be(answer: bytes, kept: bool) -> None:
    """It is used again unless the engine says close, or sent more than was asked for; the answer is good in any case."""

    async def test(pool: EnginePool) -> None:
        for _ in range(3):
            sink = await ask_engine(pool)
            assert (sink.calls, sink.payload[:2]) == (["begin"], sink.payload)
            assert pool.open_connections == int(kept)

    assert play(says(answer), test) == (1 if kept else 3)


def test_the_newest_idle_connection_is_taken_first() -> None:
    """The others grow old and are closed, so that a pool shrinks to what it needs."""

    async def test(pool: EnginePool) -> None:
        connections = [await pool.connect() for _ in range(3)]
        sinks = [Recorder() for _ in connections]
        for connection, sink in zip(connections, sinks, strict=True):
            ask(connection, sink)
            await until(lambda sink=sink: sink.over)  # type: ignore[misc]
        for _ in range(20):
            await ask_engine(pool)
            await asyncio.sleep(0.02)
        assert pool.open_connections == 1
        assert pool.acquire() is connections[-1]

    assert play(says(OK), test, idle_keep_s=0.15) == 3


STREAMED = CHUNKED + b"2\r\nok\r\n0\r\n\r\n"


async def ends_after(peer: Peer, answer: bytes, wait_s: float) -> None:
    """An engine that promises to keep its connection and closes it a moment after its answer."""
    await peer.request()
    await peer.send(answer)
    await asyncio.sleep(wait_s)
    peer.leave()


@pytest.mark.parametrize("wait_s", [0.0, 0.001, 0.005, 0.02])
def test_an_engine_that_hangs_up_after_its_answer_loses_no_request(wait_s: float) -> None:
    """Requests that follow at once never meet the closing connection, though a keep-alive was promised."""

    async def script(peer: Peer) -> None:
        await ends_after(peer, STREAMED, wait_s)

    async def test(pool: EnginePool) -> None:
        for _ in range(30):
            sink = await ask_engine(pool)
            assert (sink.complete, sink.payload) == (True, b"ok")
        assert pool._hung_up == {True}

    assert play(script, test, rest_s=0.05) == 30


def test_a_connection_that_survived_its_rest_needs_none_any_more() -> None:
    """After one rest an engine that keeps its promise is asked again at once, on the same connection."""

    async def test(pool: EnginePool) -> None:
        await ask_engine(pool)
        assert pool.acquire() is None
        await asyncio.sleep(0.07)
        for _ in range(20):
            await ask_engine(pool)

    assert play(says(STREAMED), test, rest_s=0.05) == 1


def test_a_connection_that_we_close_is_no_hanging_up() -> None:
    """A client that leaves soon after an answer says nothing about the engine: its connections are kept as before."""

    async def test(pool: EnginePool) -> None:
        for _ in range(5):
            assert (await ask_engine(pool)).complete
            await asyncio.sleep(0.03)
            connection = pool.acquire()
            assert connection is not None
            ask(connection, Recorder())
            connection.abort()
            await asyncio.sleep(0.005)
        assert (pool._survived, pool._hung_up) == ({False}, set())

    play(says(OK), test, rest_s=0.02)


def test_idle_connections_are_retired() -> None:
    """After `idle_keep_s` they are closed by us, without another request being needed."""

    async def test(pool: EnginePool) -> None:
        await ask_engine(pool)
        assert pool.open_connections == 1
        await until(lambda: pool.open_connections == 0, 1)

    play(says(OK), test, idle_keep_s=0.05)


@pytest.mark.parametrize("unasked", [b"", b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n", b"x"])
def test_an_idle_connection_that_ends_or_speaks_is_dropped(unasked: bytes) -> None:
    """An engine's close, or bytes nobody asked for, take a connection out of the pool at once."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await asyncio.sleep(0.02)
        if unasked:
            await peer.send(unasked)
            await peer.rest()

    async def test(pool: EnginePool) -> None:
        await ask_engine(pool)
        assert pool.open_connections == 1
        await until(lambda: pool.open_connections == 0)
        assert pool.acquire() is None

    play(script, test)


def test_fc_26_an_end_that_has_arrived_unseen_is_noticed() -> None:
    """The loop has not yet read the engine's close, but the socket has it: the connection is not written to."""

    async def test(pool: EnginePool) -> None:
        connections = [await pool.connect() for _ in range(2)]
        for connection in connections:
            sink = Recorder()
            ask(connection, sink)
            await until(lambda sink=sink: sink.over)  # type: ignore[misc]
        assert connections[1].is_usable()
        far = far_ends[-1]
        far.shutdown(socket.SHUT_WR)
        time.sleep(0.01)  # noqa: ASYNC251 - the loop must not run
        assert not connections[1].is_usable()
        assert pool.acquire() is connections[0]

    far_ends: list[socket.socket] = []

    async def script(peer: Peer) -> None:
        await peer.request()
        far_ends.append(socket.socket(fileno=socket.dup(peer.writer.get_extra_info("socket").fileno())))
        await peer.send(OK)
        await peer.request()

    try:
        play(script, test)
    finally:
        for far in far_ends:
            far.close()


def test_an_end_that_is_seen_on_taking_a_connection_is_a_hanging_up() -> None:
    """The engine had stayed until then, so its connections rest again."""
    far_ends: list[socket.socket] = []

    async def script(peer: Peer) -> None:
        far_ends.append(socket.socket(fileno=socket.dup(peer.writer.get_extra_info("socket").fileno())))
        while await peer.request():
            await peer.send(OK)

    async def test(pool: EnginePool) -> None:
        await ask_engine(pool)
        await asyncio.sleep(0.07)
        await ask_engine(pool)
        assert (pool.connected, pool._survived) == (1, {False})
        far_ends[0].shutdown(socket.SHUT_WR)
        time.sleep(0.01)  # noqa: ASYNC251 - the loop must not run
        assert pool.acquire() is None
        assert (pool._survived, pool._hung_up) == (set(), set())
        far_ends[0].close()

    play(script, test, rest_s=0.05)


def test_fc_26_idle_connections_never_fail_a_request() -> None:
    """Around the moment at which the engine closes idle connections every request succeeds, and is executed once."""
    executed = 0

    async def script(peer: Peer) -> None:
        nonlocal executed
        while True:
            try:
                request = await asyncio.wait_for(peer.request(), 0.1)
            except TimeoutError:
                return
            if not request:
                return
            executed += 1
            await peer.send(OK)

    async def test(pool: EnginePool) -> None:
        for i in range(20):
            assert (await ask_engine(pool)).complete
            await asyncio.sleep(0.09 + i / 1000)

    play(script, test, idle_keep_s=0.075)
    assert executed == 20


# Connecting.


def test_connecting_fails_with_a_reason() -> None:
    """Refused, unknown name, no TLS at the other end and no answer in time are told apart."""

    async def speak_first(peer: Peer) -> None:
        await peer.send(OK)
        await peer.rest()

    async def test() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            assert await _why(EnginePool("127.0.0.1", unused.getsockname()[1])) == "refused"
        for name in ("no such host", "a..b"):
            assert await _why(EnginePool(name, 80)) == "dns"
        async with engine(speak_first) as plain:
            assert await _why(EnginePool("localhost", plain.port, ssl.create_default_context())) == "tls"

    run(test())


async def _why(pool: EnginePool) -> str:
    with pytest.raises(ConnectFailed) as caught:
        await pool.connect()
    assert pool.open_connections == 0
    return caught.value.why


def test_connecting_is_bounded_and_can_be_cancelled() -> None:
    """An engine that does not accept is given up after `connect_s`; a client that leaves meanwhile leaves no connection."""

    async def test() -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            others = []
            for _ in range(8):
                other = socket.socket()
                other.setblocking(False)
                other.connect_ex(full.getsockname())
                others.append(other)
            await asyncio.sleep(0.05)
            assert await _why(EnginePool("127.0.0.1", full.getsockname()[1], connect_s=0.1)) == "timeout"
            pool = EnginePool("127.0.0.1", full.getsockname()[1], connect_s=5)
            task = asyncio.create_task(pool.connect())
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert pool.open_connections == 0
            for other in others:
                other.close()

    run(test())


def test_cancelling_a_connect_at_any_tick_leaves_no_connection() -> None:
    """Whatever the loop has done of a connect when it is cancelled, nothing of it stays open."""

    async def test(pool: EnginePool) -> None:
        for ticks in range(12):
            task = asyncio.create_task(pool.connect())
            for _ in range(ticks):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                (await task).abort()
            await asyncio.sleep(0.002)
            assert pool.open_connections == 0

    play(says(OK), test)


def test_closing_a_pool_closes_everything() -> None:
    """Idle connections go, running answers fail, and nothing is kept afterwards."""

    async def test(pool: EnginePool) -> None:
        await ask_engine(pool)
        idle = await pool.connect()
        busy = await pool.connect()
        sink = Recorder()
        ask(busy, sink, REQUEST.replace(b"/v1/x", b"/slow"))
        await asyncio.sleep(0.01)
        pool.close()
        assert (sink.calls, sink.why) == (["failed"], "closed")
        assert pool.open_connections == 0
        pool.release(idle)
        assert pool.acquire() is None
        with pytest.raises(ConnectFailed):
            await pool.connect()

    async def script(peer: Peer) -> None:
        while request := await peer.request():
            if b"/slow" not in request:
                await peer.send(OK)

    play(script, test)


# Small pages.


def test_fetch_gets_a_page() -> None:
    """Status and body come back, the Host and the given headers go out, and the connection is kept."""
    seen: list[bytes] = []

    async def script(peer: Peer) -> None:
        while request := await peer.request():
            seen.append(request)
            await peer.send(OK if b"/health " in request else b"HTTP/1.1 404 No\r\nContent-Length: 1\r\n\r\nx")

    async def test(pool: EnginePool) -> None:
        assert await fetch(pool, "/health", b"authorization: Bearer k\r\n") == (200, b"ok")
        assert await fetch(pool, "/other") == (404, b"x")
        assert seen[0] == b"GET /health HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept: */*\r\nauthorization: Bearer k\r\n\r\n" % pool.port

    assert play(script, test) == 1


@pytest.mark.parametrize(
    "script",
    [
        says(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", then="close"),
        says(b"nonsense\r\n\r\n"),
        says(CHUNKED, *[b"10000\r\n" + bytes(65536) + b"\r\n"] * 20),
        says(),
    ],
    ids=["cut", "garbage", "too large", "silence"],
)
def test_fetch_of_what_is_not_there_is_nothing(script: Script) -> None:
    """A cut, garbage, a page that is too large and silence are all (0, nothing)."""

    async def test(pool: EnginePool) -> None:
        assert await fetch(pool, "/health", timeout_s=0.2) == (0, b"")
        assert pool.open_connections == 0

    play(script, test)


def test_fetch_tries_a_dead_kept_connection_once_more() -> None:
    """A probe is a GET: that a kept connection broke is no news about the engine."""

    async def test(pool: EnginePool) -> None:
        assert await fetch(pool, "/a") == (200, b"ok")
        assert await fetch(pool, "/b") == (200, b"ok")

    async def second_is_fatal(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()

    assert play(second_is_fatal, test) == 2


def test_fetch_of_an_unreachable_engine_is_nothing() -> None:
    """No listener, no page."""

    async def test() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            assert await fetch(EnginePool("127.0.0.1", unused.getsockname()[1]), "/health") == (0, b"")

    run(test())
