"""The engine's side of the wire: answers in every framing, failures of every kind."""

import asyncio

import pytest

from fairlane.gateway.wire.response import HEAD_BYTES, HeadMemory
from fairlane.gateway.wire.upstream import AnswerHead, EnginePool, UpstreamConnection
from tests.gateway.wire.passages import Recorder, ask, ask_engine, hears, play
from tests.gateway.wire.sockets import CHUNKED, OK, Peer, says, until

STREAM = CHUNKED + b"3\r\nab\xe4\r\n2;x=y\r\n\xbd\xa0\r\n0\r\nTrailer: t\r\n\r\n"


# Answers.


@pytest.mark.parametrize(
    ("answer", "status", "length", "payload"),
    [
        (OK, 200, 2, b"ok"),
        (STREAM, 200, None, b"ab\xe4\xbd\xa0"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, None, b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", 304, 7, b""),
        (b"HTTP/1.1 500 Broken\r\nContent-Length: 0\r\n\r\n", 500, 0, b""),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, 2, b"ok"),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\nContent-Length: 5\r\n\r\n" + b"HTTP/1.1 102 P\r\n\r\n" + OK, 200, 2, b"ok"),
        (b"HTTP/1.1 200\r\nX:\r\nContent-Length: 2\r\n\r\nok", 200, 2, b"ok"),
    ],
)
def test_an_answer_survives_any_split(answer: bytes, status: int, length: int | None, payload: bytes) -> None:
    """Cut in two at every offset, or into single bytes, every framing reads the same, twice on one connection."""
    splits = [(answer[:i], answer[i:]) for i in range(1, len(answer))]

    async def test(pool: EnginePool) -> None:
        connection = await pool.connect()
        for pieces in [*splits, tuple(answer[i : i + 1] for i in range(len(answer))), (answer,)]:
            pool.heads = HeadMemory()
            for _ in range(2):  # the second time the head is known
                sink = Recorder()
                ask(connection, sink)
                for piece in pieces:
                    connection.data_received(piece)
                assert (sink.status, sink.length, sink.payload, sink.complete) == (status, length, payload, True)
                assert not {b"trailer", b"link", b"content-length"} & set(dict(sink.headers))
                assert pool.acquire() is connection

    play(hears, test)


def test_an_answer_arrives_by_callback() -> None:
    """Each arrival is one call, with the head and all the payload that came in it, and the last one says so."""

    async def test(pool: EnginePool) -> None:
        for _ in range(2):
            sink = await ask_engine(pool)
            assert (sink.calls, sink.complete) == (["begin"], True)
            assert (sink.status, sink.payload, sink.length) == (200, b"ab\xe4\xbd\xa0", None)
            assert sink.headers == [(b"content-type", b"text/event-stream"), (b"transfer-encoding", b"chunked")]

    assert play(says(STREAM), test) == 1


def test_single_bytes_over_a_socket_make_the_same_answer() -> None:
    """One byte in each segment is an answer like any other."""

    async def test(pool: EnginePool) -> None:
        sink = await ask_engine(pool)
        assert (sink.calls[0], sink.complete, sink.payload) == ("begin", True, b"ab\xe4\xbd\xa0")

    play(says(*(STREAM[i : i + 1] for i in range(len(STREAM)))), test)


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    """Neither length nor chunks: the close is the end, and a reset is none."""

    async def test(pool: EnginePool) -> None:
        sink = await ask_engine(pool)
        assert (sink.complete, sink.payload, sink.length) == (True, b"all of it", None)

    play(says(b"HTTP/1.1 200 OK\r\n\r\n", b"all ", b"of it", then="close"), test)

    async def broken(pool: EnginePool) -> None:
        sink = await ask_engine(pool)
        assert (sink.calls[-1], sink.why) == ("failed", "reset")

    play(says(b"HTTP/1.1 200 OK\r\n\r\n", b"all ", then="reset"), broken)


# Failures.


@pytest.mark.parametrize(
    ("pieces", "then", "why", "head_seen"),
    [
        ([], "close", "closed", False),
        ([], "reset", "reset", False),
        ([b"HTTP/1.1 200 OK\r\nContent-"], "close", "closed", False),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", b"abc"], "close", "closed", True),
        ([CHUNKED, b"3\r\nabc\r\n"], "close", "closed", True),
        ([CHUNKED, b"3\r\nabc\r\n"], "reset", "reset", True),
        ([b"SSH-2.0-OpenSSH_9.2\r\n"], "stay", "garbage", False),
        ([bytes(100)], "stay", "garbage", False),
        ([CHUNKED, b"zz\r\n"], "stay", "garbage", True),
        ([b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"], "stay", "garbage", False),
        ([b"HTTP/1.1 101 Switching Protocols\r\n\r\n"], "stay", "garbage", False),
        ([b"HTTP/1.1 099 What\r\nContent-Length: 0\r\n\r\n"], "stay", "garbage", False),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nabc"], "stay", "garbage", False),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n"], "stay", "garbage", False),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"], "stay", "garbage", False),
        ([b"HTTP/1.1 200 OK\r\nA: " + b"a" * 1000] + [b"a" * 1000] * (HEAD_BYTES // 1000 + 1), "stay", "garbage", False),
        ([b"HTTP/1.1 100 Continue\r\n\r\n" * 400] * (HEAD_BYTES // 10000 + 1), "stay", "garbage", False),
    ],
)
def test_fc_02_every_failure_is_told_once(pieces: list[bytes], then: str, why: str, head_seen: bool) -> None:
    """However an engine fails, the sink hears why, exactly once, and the connection is closed."""

    async def test(pool: EnginePool) -> None:
        sink = await ask_engine(pool)
        assert (sink.calls[-1], sink.why, sink.unsent) == ("failed", why, False)
        assert ("begin" in sink.calls) is head_seen
        assert pool.open_connections == 0
        assert pool.acquire() is None

    play(says(*pieces, then=then), test)


def test_a_request_for_a_closed_connection_is_not_sent() -> None:
    """The sink is told that nothing was written: only this may be repeated."""

    async def test(pool: EnginePool) -> None:
        connection = await pool.connect()
        await until(lambda: pool.open_connections == 0)
        sink = Recorder()
        ask(connection, sink)
        assert (sink.calls, sink.unsent) == (["failed"], True)

    async def hang_up(peer: Peer) -> None:
        del peer

    play(hang_up, test)


def test_a_kept_connection_that_dies_after_the_write_is_no_reason_to_repeat() -> None:
    """The engine may have read the request: the failure does not say that it was unsent."""

    async def test(pool: EnginePool) -> None:
        assert (await ask_engine(pool)).complete
        sink = await ask_engine(pool)
        assert (sink.calls, sink.unsent) == (["failed"], False)

    async def second_is_fatal(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()

    assert play(second_is_fatal, test) == 1


@pytest.mark.parametrize("stage", ["before the head", "in the body"])
def test_fc_04_an_aborted_request_closes_its_connection_and_tells_no_one(stage: str) -> None:
    """The engine sees its peer leave at once."""
    left: list[bool] = []

    async def script(peer: Peer) -> None:
        await peer.request()
        if stage == "in the body":
            await peer.send(CHUNKED, b"3\r\nabc\r\n")
        left.append(await peer.closed())

    async def test(pool: EnginePool) -> None:
        sink = Recorder()
        connection = await pool.connect()
        ask(connection, sink)
        await (until(lambda: sink.payload) if stage == "in the body" else asyncio.sleep(0.01))
        before = list(sink.calls)
        connection.abort()
        assert pool.open_connections == 0
        await until(lambda: left)
        assert sink.calls == before

    play(script, test)
    assert left == [True]


def test_a_sink_may_abort_in_any_of_its_calls() -> None:
    """Nothing is called after an abort, not even for what is in the same arrival."""

    async def test(pool: EnginePool) -> None:
        for call in ("begin", "more"):
            connection = await pool.connect()
            sink = Recorder()

            def stop(*_: object, connection: UpstreamConnection = connection, call: str = call, sink: Recorder = sink) -> None:
                sink.calls.append(call)
                connection.abort()

            setattr(sink, call, stop)
            ask(connection, sink)
            await until(lambda sink=sink, call=call: call in sink.calls)  # type: ignore[misc]
            await asyncio.sleep(0.01)
            assert sink.calls[-1] == call
            assert pool.open_connections == 0

    play(says(CHUNKED, b"1\r\na\r\n", b"1\r\nb\r\n0\r\n\r\n"), test)


def test_reading_stops_and_goes_on() -> None:
    """A paused connection takes nothing from the engine, so that TCP slows it."""

    async def test(pool: EnginePool) -> None:
        connection = await pool.connect()
        sink = Recorder()
        ask(connection, sink)
        await until(lambda: sink.payload)
        connection.pause()
        await asyncio.sleep(0.02)
        got = len(sink.payload)
        await asyncio.sleep(0.05)
        assert len(sink.payload) == got
        assert got < 32 << 20
        connection.resume()
        await until(lambda: sink.over)
        assert len(sink.payload) == 32 << 20

    play(says(b"HTTP/1.1 200 OK\r\nContent-Length: 33554432\r\n\r\n", bytes(32 << 20)), test)


def test_a_connection_that_is_paused_at_the_end_reads_again() -> None:
    """The next request on it gets its answer."""

    class Pausing(Recorder):
        connection: UpstreamConnection

        def begin(self, head: AnswerHead, length: int | None, data: bytes, last: bool) -> None:
            super().begin(head, length, data, last)
            self.connection.pause()

    async def test(pool: EnginePool) -> None:
        connection = await pool.connect()
        for _ in range(2):
            sink = Pausing()
            sink.connection = connection
            ask(connection, sink)
            await until(lambda sink=sink: sink.over)  # type: ignore[misc]
            assert pool.acquire() is connection

    assert play(says(OK), test) == 1
