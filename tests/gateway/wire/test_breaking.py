"""Answers that break, fall silent or are not wanted any more: what the client sees, and what the engine."""

import asyncio
import contextlib
import json

import pytest

from fairlane.gateway.wire import relay as module
from fairlane.gateway.wire.exchange import Exchange
from fairlane.gateway.wire.relay import Relay
from fairlane.gateway.wire.upstream import EnginePool, UpstreamConnection
from tests.gateway.wire.passages import EVENTS, LAST, REPLY, STREAM_HEAD, Gateway, framed, plain, through
from tests.gateway.wire.sockets import Peer, connect, engine, run, says, serving, until

EARLY = {
    "close": ([], "close", "closed"),
    "reset": ([], "reset", "reset"),
    "half a head": ([b"HTTP/1.1 200"], "close", "closed"),
    "garbage": ([b"nonsense\r\n\r\n"], "stay", "garbage"),
    "head of a stream": ([STREAM_HEAD], "close", "closed"),
    "half an event": ([STREAM_HEAD, *framed(b": ping\n\n", b"data: {")], "reset", "reset"),
}


async def relayed(exchange: Exchange, connection: UpstreamConnection, relays: list[Relay] | None = None) -> Relay:
    """A whole answer that is passed on."""
    over = asyncio.Event()
    relay = Relay(exchange, connection, lambda _: b"", lambda _: over.set(), first_byte_s=5, idle_s=5, stream=False)
    if relays is not None:
        relays.append(relay)
    relay.start(b"GET / HTTP/1.1\r\n\r\n")
    await over.wait()
    return relay


def paused(made: Gateway) -> bool:
    """Whether the client has stopped the engine."""
    return bool(made.relays) and made.relays[0]._connection._paused


@pytest.mark.parametrize(("pieces", "then", "why"), EARLY.values(), ids=EARLY)
def test_fc_02_a_failure_before_the_first_byte_is_the_callers_to_answer(pieces: list[bytes], then: str, why: str) -> None:
    """Nothing was sent, so the client gets a real status, and its connection lives on."""

    async def test(made: Gateway) -> None:
        client = await made.client()
        for count in (1, 2):
            answer = await client.answer()
            assert (answer.status, answer.body) == (502, why.encode())
            relay = await made.over(count)
            assert (relay.status, relay.started, relay.failure, relay.completed) == (0, False, why, False)
            assert made.pool.open_connections == 0
            await made.ask(client)

    through(says(*pieces, then=then), test)


@pytest.mark.parametrize("then", ["close", "reset", "silence", "garbage"])
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_fc_21_a_stream_that_is_cut_looks_cut(then: str, version: bytes) -> None:
    """The client gets an error event and no proper end, never `[DONE]`; the count of what passed stays."""
    pieces = [STREAM_HEAD, *framed(*EVENTS)] + ([b"zz\r\n"] if then == "garbage" else [])

    async def test(made: Gateway) -> None:
        answer = await (await made.client(version=version)).answer()
        relay = await made.over()
        assert relay.failure == {"close": "closed", "reset": "reset", "silence": "timeout", "garbage": "garbage"}[then]
        assert (relay.status, relay.completed, relay.events) == (200, False, 3)
        assert b"[DONE]" not in answer.body
        assert answer.cut
        if version == b"1.1":
            assert answer.body == b"".join(EVENTS) + module.BROKEN_OFF
            assert json.loads(module.BROKEN_OFF[6:])["error"]["code"] == "engine_failed"
        assert made.pool.open_connections == 0

    through(says(*pieces, then="stay" if then in {"silence", "garbage"} else then, pause_s=0.01), test, idle_s=0.2)


def test_fc_21_no_event_is_put_into_another() -> None:
    """A stream that is cut in the middle of an event just ends there."""

    async def test(made: Gateway) -> None:
        answer = await (await made.client()).answer()
        assert (answer.body, answer.cut) == (EVENTS[0] + EVENTS[1][:9], True)

    through(says(STREAM_HEAD, *framed(EVENTS[0], EVENTS[1][:9]), then="close"), test)


@pytest.mark.parametrize("then", ["close", "reset"])
def test_fc_21_a_plain_body_that_is_cut_looks_cut(then: str) -> None:
    """Fewer bytes than declared, or no last chunk."""

    async def test(made: Gateway) -> None:
        answer = await (await made.client(stream=False)).answer()
        assert answer.cut
        relay = await made.over()
        assert (relay.status, relay.completed) == (200, False)
        assert relay.failure in {"closed", "reset"}

    through(says(plain(b"x" * 100)[:-40], then=then, pause_s=0.01), test)
    chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    through(says(chunks, *framed(b"abc"), then=then, pause_s=0.01), test)


def test_a_request_that_was_never_written_may_be_sent_again() -> None:
    """The relay says so, and leaves the exchange untouched for the next one."""

    async def test() -> None:
        async with engine(says(plain(b"{}"))) as seen:
            with contextlib.closing(EnginePool("127.0.0.1", seen.port, rest_s=0)) as pool:
                unsent: list[bool] = []

                async def serve(exchange: Exchange) -> None:
                    dead, alive = await pool.connect(), await pool.connect()
                    dead.abort()
                    for connection in (dead, alive):
                        relay = await relayed(exchange, connection)
                        unsent.append(relay.unsent)

                async with serving(serve) as listener:
                    client = await connect(listener.port)
                    await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                    assert (await client.answer()).body == b"{}"
                    assert unsent == [True, False]

    run(test())


# Time.


@pytest.mark.parametrize("pieces", [[], [b"HTTP/1.1 200"], [STREAM_HEAD], [STREAM_HEAD, *framed(b": ping\n\n")]])
def test_fc_27_the_first_byte_has_its_own_limit(pieces: list[bytes]) -> None:
    """Silence before the head or the first event is legal up to `first_byte_s`, longer than `idle_s`; beyond it nothing was sent."""

    async def test(made: Gateway) -> None:
        started = asyncio.get_running_loop().time()
        answer = await (await made.client()).answer()
        assert (answer.status, answer.body) == (504, b"timeout")
        assert 0.19 < asyncio.get_running_loop().time() - started < 0.6
        assert (await made.over()).failure == "timeout"
        assert made.pool.open_connections == 0

    through(says(*pieces), test, first_byte_s=0.2, idle_s=0.05)


@pytest.mark.parametrize("stream", [True, False])
def test_fc_27_a_long_silence_before_the_first_byte_is_legal(stream: bool) -> None:
    """Longer than `idle_s`, shorter than `first_byte_s`: answered."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await asyncio.sleep(0.2)
        await peer.send(STREAM_HEAD + b"".join(framed(REPLY)) + LAST if stream else plain(b"{}"))
        await peer.request()

    async def test(made: Gateway) -> None:
        answer = await (await made.client(stream=stream)).answer()
        assert (answer.status, answer.body) == (200, REPLY if stream else b"{}")

    through(script, test, first_byte_s=5, idle_s=0.05)


def test_the_idle_limit_is_for_silence_not_for_length() -> None:
    """A stream may take many times `idle_s`, as long as something comes; then the limit is kept to the moment."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await asyncio.sleep(0.2)
        await peer.send(STREAM_HEAD)
        for _ in range(8):
            await peer.send(*framed(EVENTS[0]))
            await asyncio.sleep(0.05)
        silent.append(asyncio.get_running_loop().time() - 0.05)
        await peer.rest()

    silent: list[float] = []

    async def test(made: Gateway) -> None:
        answer = await (await made.client()).answer()
        assert answer.body == EVENTS[0] * 8 + module.BROKEN_OFF
        assert 0.1 < asyncio.get_running_loop().time() - silent[0] < 0.3

    through(script, test, first_byte_s=5, idle_s=0.15)


# Clients that leave, and clients that are slow.


STAGES: dict[str, list[bytes]] = {
    "before the head": [],
    "in the head": [b"HTTP/1.1 200 OK\r\nConten"],
    "before the first event": [STREAM_HEAD, *framed(b": ping\n\n")],
    "in the stream": [STREAM_HEAD, *framed(*EVENTS)],
    "in a plain body": [plain(b"x" * 100)[:-40]],
}


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_fc_04_a_client_that_leaves_stops_its_engine(stage: str, reset: bool) -> None:
    """At every stage the engine sees its peer close at once, and what had passed is still told."""
    left: list[bool] = []

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(*STAGES[stage])
        left.append(await peer.closed())

    async def test(made: Gateway) -> None:
        client = await made.client()
        await until(lambda: made.relays)
        await asyncio.sleep(0.02)
        if reset:
            client.reset()
        else:
            client.leave()
        await until(lambda: left, 1)
        relay = await made.over()
        assert made.ended == []
        assert (relay.completed, relay.failure) == (False, None)
        assert relay.events == (3 if stage == "in the stream" else 0)
        assert made.pool.open_connections == 0
        assert not made.listener.server.connections

    through(script, test)
    assert left == [True]


def test_cancelling_at_any_tick_leaves_nothing() -> None:
    """However far the loop has come with an answer, a client that leaves then takes everything with it."""
    answer = STREAM_HEAD + b"".join(framed(REPLY)) + LAST

    async def script(peer: Peer) -> None:
        while await peer.request():
            await peer.send(answer[:150], answer[150:400], answer[400:])

    async def test(made: Gateway) -> None:
        for ticks in range(40):
            client = await made.client()
            for _ in range(ticks):
                await asyncio.sleep(0)
            client.leave()
            await until(lambda: not made.listener.server.connections)
            assert made.pool.open_connections == len(made.pool._idle)
        assert made.over_count == 40
        assert all(relay.completed for relay in made.ended)

    through(script, test)


def test_fc_24_a_slow_reader_slows_its_engine() -> None:
    """What is buffered for a client that does not read is bounded; the engine is stopped, others go on, and nothing is lost."""
    total = 24 << 20
    event = b"data: " + b"x" * 65529 + b"\n\n"
    written = 0

    async def script(peer: Peer) -> None:
        nonlocal written
        request = await peer.request()
        await peer.send(STREAM_HEAD)
        if not request:
            return
        piece = framed(event)[0]
        while written < total:
            peer.writer.write(piece)
            await peer.writer.drain()
            written += len(event)
        await peer.send(LAST)
        await peer.request()

    async def test(made: Gateway) -> None:
        client = await made.client(receive_bytes=8192)
        await until(lambda: paused(made))
        await asyncio.sleep(0.1)
        [connection] = made.listener.server.connections
        assert connection.transport.get_write_buffer_size() < 1 << 20
        stopped_at = written
        await asyncio.sleep(0.3)
        assert written == stopped_at < total
        assert not made.relays[0].failure
        answer = await client.answer()
        assert (len(answer.body), answer.cut) == (written, False)
        assert (await made.over()).completed

    through(script, test, idle_s=0.2)


def test_fc_24_a_stalled_reader_is_dropped_and_its_engine_freed() -> None:
    """Who takes nothing for `stall_s` is gone, and so is the engine's connection."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM_HEAD)
        while True:
            peer.writer.write(framed(EVENTS[0] * 100)[0])
            await peer.writer.drain()

    async def test(made: Gateway) -> None:
        client = await made.client(receive_bytes=8192)
        await until(lambda: paused(made))
        await until(lambda: not made.listener.server.connections)
        await made.over()
        assert made.pool.open_connections == 0
        assert made.ended == []
        client.leave()

    through(script, test, stall_s=0.2)


def test_the_engine_is_free_before_a_slow_client_has_read() -> None:
    """An answer that fits the send buffer frees its connection at the engine's last byte; `when_flushed` waits for the client."""
    body = b"x" * (6 << 20)

    async def test(made: Gateway) -> None:
        client = await made.client(stream=False, receive_bytes=8192)
        await until(lambda: made.ended or paused(made))
        assert made.over_count == 0
        answer = await client.answer()
        assert len(answer.body) == len(body)
        await made.over()
        assert made.ended[0].completed

    through(says(plain(body)), test)


def test_a_client_that_was_slow_before_pauses_the_next_answer_too() -> None:
    """A relay that begins while the send buffer is still full stops its engine from the start."""
    body = b"x" * (16 << 20)

    async def test() -> None:
        async with engine(says(plain(body))) as seen:
            with contextlib.closing(EnginePool("127.0.0.1", seen.port)) as pool:
                relays: list[Relay] = []

                async def serve(exchange: Exchange) -> None:
                    if exchange.head.path == "/first":
                        exchange.respond(200, b"", body)
                        return
                    await relayed(exchange, await pool.connect(), relays)

                async with serving(serve) as listener:
                    client = await connect(listener.port, receive_bytes=8192)
                    await client.send(b"".join(b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n" % path for path in (b"first", b"second")))
                    await until(lambda: relays)
                    await asyncio.sleep(0.1)
                    assert not relays[0].started
                    for _ in range(2):
                        assert len((await client.answer()).body) == len(body)
                    assert relays[0].completed

    run(test())
