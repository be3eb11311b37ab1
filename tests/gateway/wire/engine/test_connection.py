"""A connection to an engine by itself: how long it waits, what it hands on and when, and what it does about our own mistakes."""

import asyncio

import pytest

from fairlane.gateway.wire.upstream import AnswerHead, EnginePool
from tests.gateway.wire.passages import Recorder, ask, hears, play
from tests.gateway.wire.sockets import CHUNKED, OK, REQUEST, Peer, says, until

# Silence.


def test_each_request_has_its_own_limits_on_one_connection() -> None:
    """One timer serves them all: a shorter limit than it was set for moves it, and none is kept before its time."""
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        for _ in range(3):
            await peer.request()
            await peer.send(OK)
        await peer.request()
        await gate.wait()

    async def test(pool: EnginePool) -> None:
        loop = asyncio.get_running_loop()
        connection = await pool.connect()
        for first_byte_s, idle_s in ((5, 5), (0.05, 5), (5, 0.05)):
            sink = Recorder()
            connection.send(REQUEST, sink, first_byte_s, idle_s)
            await until(lambda sink=sink: sink.over)  # type: ignore[misc]
            await asyncio.sleep(0.06)
            assert sink.complete
            assert pool.acquire() is connection
        sink, started = Recorder(), loop.time()
        connection.send(REQUEST, sink, 0.1, 0.2)
        await until(lambda: sink.over)
        assert (sink.why, sink.unsent) == ("timeout", False)
        assert 0.095 < loop.time() - started < 0.16
        assert pool.open_connections == 0
        gate.set()

    assert play(script, test) == 1


def test_the_timer_is_not_moved_for_each_request() -> None:
    """Requests with the limits of those before them leave it alone."""

    async def test(pool: EnginePool) -> None:
        connection = await pool.connect()
        timers = set()
        for _ in range(20):
            sink = Recorder()
            connection.send(REQUEST, sink, 5, 2)
            timers.add(connection._timer)
            await until(lambda sink=sink: sink.over)  # type: ignore[misc]
            assert pool.acquire() is connection
        assert len(timers) == 1

    play(says(OK), test)


def test_a_part_of_a_head_ends_no_silence() -> None:
    """The head must be whole in time, however its bytes come."""

    async def script(peer: Peer) -> None:
        await peer.request()
        for i in range(len(OK)):
            await peer.send(OK[i : i + 1])
            await asyncio.sleep(0.02)

    async def test(pool: EnginePool) -> None:
        sink = Recorder()
        (await pool.connect()).send(REQUEST, sink, 0.1, 5)
        await until(lambda: sink.over)
        assert (sink.calls, sink.why) == (["failed"], "timeout")

    play(script, test)


# Our own mistakes.


@pytest.mark.parametrize("call", ["begin", "more", "more, the last one", "more, at the end of the connection"])
def test_what_a_sink_raises_fails_its_answer(call: str) -> None:
    """It is told once more, the connection is closed, and the loop hears of the mistake."""
    faults: list[object] = []

    class Clumsy(Recorder):
        def begin(self, head: AnswerHead, length: int | None, data: bytes, last: bool) -> None:
            super().begin(head, length, data, last)
            self.stumble("begin")

        def more(self, data: bytes, framed: bytes, last: bool) -> None:
            super().more(data, framed, last)
            self.stumble(call if last else "more")

        def stumble(self, here: str) -> None:
            if here == call:
                self.complete = False
                raise ZeroDivisionError

    async def test(pool: EnginePool) -> None:
        loop = asyncio.get_running_loop()
        handler = loop.get_exception_handler()
        loop.set_exception_handler(lambda _, context: faults.append(context.get("exception")))
        connection, sink = await pool.connect(), Clumsy()
        ask(connection, sink)
        await until(lambda: sink.why)
        assert (sink.calls[-1], sink.why, sink.unsent) == ("failed", "reset", False)
        await asyncio.sleep(0.01)
        assert pool.open_connections == 0
        assert pool.acquire() is None
        assert [type(fault) for fault in faults] == [ZeroDivisionError]
        loop.set_exception_handler(handler)

    if "connection" in call:
        play(says(b"HTTP/1.1 200 OK\r\n\r\nabc", then="close"), test)
    else:
        play(says(CHUNKED, b"1\r\na\r\n", b"0\r\n\r\n", pause_s=0.01), test)


def test_a_sink_that_fails_at_its_end_does_not_silence_the_next_one() -> None:
    """The connection was given to another request in the very call that raised: that one is told, too."""

    class Passing(Recorder):
        def begin(self, head: AnswerHead, length: int | None, data: bytes, last: bool) -> None:
            super().begin(head, length, data, last)
            next_one = pools[0].acquire()
            assert next_one is not None
            ask(next_one, second)
            self.complete = False
            raise ZeroDivisionError

    pools: list[EnginePool] = []
    first, second = Passing(), Recorder()

    async def test(pool: EnginePool) -> None:
        pools.append(pool)
        loop = asyncio.get_running_loop()
        handler = loop.get_exception_handler()
        loop.set_exception_handler(lambda *_: None)
        ask(await pool.connect(), first)
        await until(lambda: first.why and second.why)
        assert (first.why, second.why, second.unsent) == ("reset", "reset", False)
        await asyncio.sleep(0.01)
        loop.set_exception_handler(handler)
        assert pool.open_connections == 0

    play(says(OK), test)


# The order of things.


def test_a_connection_is_idle_again_before_its_sink_hears_the_last() -> None:
    """So that what the sink does next may use it."""
    free: list[bool] = []

    class Asking(Recorder):
        def begin(self, head: AnswerHead, length: int | None, data: bytes, last: bool) -> None:
            super().begin(head, length, data, last)
            free.append(pools[0].acquire() is not None)

        def more(self, data: bytes, framed: bytes, last: bool) -> None:
            super().more(data, framed, last)
            free.append(pools[0].acquire() is not None)

    pools: list[EnginePool] = []

    async def test(pool: EnginePool) -> None:
        pools[:] = [pool]
        sink = Asking()
        connection = await pool.connect()
        ask(connection, sink)
        await until(lambda: sink.over)
        connection.abort()

    play(says(OK), test)
    play(says(CHUNKED, b"1\r\na\r\n", b"0\r\n\r\n", pause_s=0.01), test)
    assert free == [True, False, False, True]


def test_whole_chunks_are_handed_on_with_their_framing() -> None:
    """The very bytes, but not those that came with the head, are cut, or hold the last chunk."""
    pieces = [CHUNKED + b"1\r\na\r\n", b"2\r\nbc\r\n", b"1\r\nd\r\n1\r\ne\r\n", b"1\r\n", b"f\r\n", b"1\r\ng\r\n0\r\n\r\n"]

    async def test(pool: EnginePool) -> None:
        connection, sink = await pool.connect(), Recorder()
        ask(connection, sink)
        for piece in pieces:
            connection.data_received(piece)
        assert (sink.payload, sink.complete) == (b"abcdefg", True)
        assert sink.framed == pieces[1:3]

    play(hears, test)
