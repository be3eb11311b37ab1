"""How a relay ends: once, after everything else, whatever it is that ends it; and what it passes in the engine's own framing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from fairlane.gateway.wire import relay as module
from fairlane.gateway.wire.exchange import Exchange
from fairlane.gateway.wire.relay import Relay
from fairlane.gateway.wire.upstream import EnginePool
from tests.gateway.wire.passages import DONE, EVENTS, LAST, STREAM_HEAD, USAGE, USAGE_EVENT, framed, plain
from tests.gateway.wire.sockets import REQUEST, End, Peer, Script, connect, engine, run, says, serving, until

WHOLE = b"".join([*EVENTS, USAGE_EVENT, DONE])


@dataclass
class Scene:
    """A client's exchange and the relay that answers it, with what was seen at each `on_over`."""

    pool: EnginePool
    client: End
    exchange: Exchange
    relay: Relay = field(init=False)
    over: list[tuple[bool, int, int]] = field(default_factory=list)  # finished, idle connections, open ones
    faults: list[type] = field(default_factory=list)
    raises: bool = False

    def on_over(self, relay: Relay) -> None:
        """Note the state of things; answer in place of an engine that did not."""
        assert relay is self.relay
        self.over.append((self.exchange.finished, len(self.pool._idle), self.pool.open_connections))
        if self.raises:
            raise ZeroDivisionError
        if not relay.started:
            self.exchange.respond(502, b"", str(relay.failure).encode())


def broken(_: int) -> bytes:
    """Headers that cannot be made."""
    raise ZeroDivisionError


@contextlib.asynccontextmanager
async def scene(
    script: Script, *, hide_usage: bool = False, version: bytes = b"1.1", lines: Callable[[int], bytes] = lambda _: b"", idle_s: float = 5
) -> AsyncIterator[Scene]:
    """One client that has sent a request, and a relay for it that was not started yet."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[Exchange] = loop.create_future()

    class Patient:
        def abandon(self) -> None:
            """The test ends what it begins."""

    def serve(exchange: Exchange) -> None:
        exchange.worker = Patient()
        waiting.set_result(exchange)

    async with engine(script) as seen, serving(serve) as listener, contextlib.AsyncExitStack() as stack:
        pool = stack.enter_context(contextlib.closing(EnginePool("127.0.0.1", seen.port, rest_s=0)))
        client = await connect(listener.port)
        await client.send(b"GET / HTTP/%b\r\nHost: x\r\n\r\n" % version)
        exchange, connection = await waiting, await pool.connect()
        made = Scene(pool, client, exchange)
        made.relay = Relay(exchange, connection, lines, made.on_over, first_byte_s=5, idle_s=idle_s, stream=True, hide_usage=hide_usage)
        handler = loop.get_exception_handler()
        loop.set_exception_handler(lambda _, context: made.faults.append(type(context["exception"])))
        yield made
        await asyncio.sleep(0.01)
        assert len(made.over) <= 1
        assert exchange.flow is None
        loop.set_exception_handler(handler)


# The order of things.


@pytest.mark.parametrize(
    "pieces",
    [
        [plain(b"{}")],
        [plain(b"{}")[:-1], b"}"],
        [STREAM_HEAD, *framed(*EVENTS), LAST],
        [STREAM_HEAD + b"".join(framed(*EVENTS)) + LAST],
        [b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"],
    ],
)
def test_the_end_comes_when_everything_is_done(pieces: list[bytes]) -> None:
    """The client's last byte is written and the engine's connection is idle."""

    async def test() -> None:
        async with scene(says(*pieces, pause_s=0.005)) as made:
            made.relay.start(REQUEST)
            await until(lambda: made.over)
            assert made.over == [(True, 1, 1)]
            assert made.relay.completed
            assert (await made.client.answer()).status == 200

    run(test())


@pytest.mark.parametrize(
    ("pieces", "then", "failure"),
    [
        ([], "close", "closed"),
        ([STREAM_HEAD, *framed(EVENTS[0])], "reset", "reset"),
        ([STREAM_HEAD, *framed(EVENTS[0]), b"zz\r\n"], "stay", "garbage"),
        ([STREAM_HEAD, *framed(EVENTS[0])], "stay", "timeout"),
        ([STREAM_HEAD, *framed(b'data: {"error":{"code":503}}\n\n')], "stay", None),
        ([STREAM_HEAD, *framed(b'data: {"error":{"code":503}}\n\n'), LAST], "stay", None),
    ],
)
def test_an_engine_that_fails_is_closed_before_the_end_is_told(pieces: list[bytes], then: str, failure: str | None) -> None:
    """What had begun is broken off; an error object has become an answer."""

    async def test() -> None:
        async with scene(says(*pieces, then=then, pause_s=0.005), idle_s=0.1) as made:
            made.relay.start(REQUEST)
            await until(lambda: made.over)
            assert made.over == [(bool(pieces), 0, 0)]
            assert (made.relay.failure, made.relay.completed, made.relay.refused) == (failure, False, failure is None)

    run(test())


def test_an_error_object_that_came_whole_leaves_the_connection_to_the_pool() -> None:
    """Its stream has ended already, so it may carry another request, and is not closed behind that one's back."""

    async def test() -> None:
        async with scene(says(STREAM_HEAD + framed(b'data: {"error":{"code":503}}\n\n')[0] + LAST)) as made:
            made.relay.start(REQUEST)
            await until(lambda: made.over)
            assert made.over == [(True, 1, 1)]
            assert (made.relay.refused, made.relay.status, made.relay.completed) == (True, 503, False)

    run(test())


def test_the_end_may_come_before_start_returns() -> None:
    """A connection that is closed already is no reason to wait."""

    async def test() -> None:
        async with scene(says()) as made:
            made.relay._connection.abort()
            made.relay.start(REQUEST)
            assert made.over == [(False, 0, 0)]
            assert (made.relay.failure, made.relay.unsent) == ("closed", True)
            with pytest.raises(RuntimeError):
                made.relay.start(REQUEST)

    run(test())


def test_a_relay_is_started_once() -> None:
    """Whatever has become of it."""

    async def test() -> None:
        async with scene(says()) as made:
            made.relay.start(REQUEST)
            with pytest.raises(RuntimeError):
                made.relay.start(REQUEST)
            made.relay.abandon()
            with pytest.raises(RuntimeError):
                made.relay.start(REQUEST)
            made.exchange.respond(502, b"", b"")

    run(test())


# Giving up.


@pytest.mark.parametrize("pieces", [[], [STREAM_HEAD], [STREAM_HEAD, *framed(*EVENTS, USAGE_EVENT)], [plain(b"{}")[:-1]]])
def test_an_answer_that_is_given_up_is_not_told_of(pieces: list[bytes]) -> None:
    """The engine's connection is closed at once, what had come is known, and giving up again changes nothing."""
    left: list[bool] = []

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(*pieces)
        left.append(await peer.closed())

    async def test() -> None:
        async with scene(script) as made:
            made.relay.start(REQUEST)
            await asyncio.sleep(0.02)
            made.relay.abandon()
            assert made.pool.open_connections == 0
            made.relay.abandon()
            await until(lambda: left)
            assert (made.over, made.relay.completed, made.relay.failure) == ([], False, None)
            assert (made.relay.events, made.relay.usage) == ((3, USAGE) if len(pieces) > 2 else (0, None))
            made.exchange.abort()

    run(test())


def test_giving_up_what_is_over_leaves_the_connection_alone() -> None:
    """It belongs to the pool, and perhaps to another request by then."""

    async def test() -> None:
        async with scene(says(plain(b"{}"))) as made:
            made.relay.start(REQUEST)
            await until(lambda: made.over)
            made.relay.abandon()
            made.relay.pause()
            assert (len(made.over), len(made.pool._idle)) == (1, 1)
            assert made.pool.acquire() is made.relay._connection

    run(test())


def test_a_relay_that_never_started_can_be_given_up() -> None:
    """Its connection is closed."""

    async def test() -> None:
        async with scene(says()) as made:
            made.relay.abandon()
            assert (made.over, made.pool.open_connections) == ([], 0)
            made.exchange.respond(502, b"", b"")

    run(test())


# Our own mistakes.


def test_a_mistake_at_the_end_is_told_to_the_loop_and_not_repeated() -> None:
    """The client has its answer."""

    async def test() -> None:
        async with scene(says(plain(b"{}"))) as made:
            made.raises = True
            made.relay.start(REQUEST)
            assert (await made.client.answer()).body == b"{}"
            await until(lambda: made.faults)
            assert (made.faults, len(made.over), made.relay.failure) == ([ZeroDivisionError], 1, None)

    run(test())


def test_a_mistake_in_the_middle_ends_the_request() -> None:
    """The client sees its stream break off, the engine is closed, and the end is told once."""

    def mistake(_: int) -> None:
        raise ZeroDivisionError

    async def test() -> None:
        async with scene(says(STREAM_HEAD, *framed(*EVENTS), pause_s=0.01)) as made:
            made.relay.on_progress = mistake
            made.relay.start(REQUEST)
            answer = await made.client.answer()
            assert (answer.body, answer.cut) == (module.BROKEN_OFF, True)
            assert (made.over, made.relay.failure) == ([(True, 0, 0)], "reset")
            await until(lambda: made.faults)

    run(test())


@pytest.mark.parametrize("answer", [plain(b"{}"), plain(b"{}")[:-1], STREAM_HEAD + b"".join(framed(*EVENTS))])
def test_a_mistake_before_the_head_leaves_the_answer_to_the_caller(answer: bytes) -> None:
    """Nothing was sent yet, so the client gets a real status."""

    async def test() -> None:
        async with scene(says(answer), lines=broken) as made:
            made.relay.start(REQUEST)
            got = await made.client.answer()
            assert (got.status, got.body) == (502, b"reset")
            assert len(made.over) == 1
            await until(lambda: made.faults)
            assert made.pool.open_connections == 0

    run(test())


# Framing.


@pytest.mark.parametrize("hide_usage", [False, True])
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_chunks_pass_as_the_engine_framed_them(version: bytes, hide_usage: bool) -> None:
    """Digit for digit where they came whole and nothing is taken out, and without framing where the client knows none."""
    chunks = [b"%04X\r\n%b\r\n" % (len(event), event) for event in [*EVENTS, USAGE_EVENT, DONE]]
    pieces = [STREAM_HEAD, chunks[0], chunks[1][:20], chunks[1][20:], chunks[2], chunks[3], chunks[4], LAST]
    shown = [*EVENTS, DONE] if hide_usage else [*EVENTS, USAGE_EVENT, DONE]

    async def test() -> None:
        async with scene(says(*pieces, pause_s=0.005), hide_usage=hide_usage, version=version) as made:
            made.relay.start(REQUEST)
            await until(lambda: made.over)
            head = await made.client.line_block()
            if version == b"1.0":
                assert await made.client.rest() == b"".join(shown)
            else:
                assert b"transfer-encoding: chunked\r\n" in head
                raw = await made.client.reader.readuntil(LAST)
                assert chunks[2] in raw
                assert chunks[4] in raw
                assert chunks[1] not in raw
                assert (chunks[3] in raw) is not hide_usage
            assert (made.relay.usage, made.relay.events) == (USAGE, 3)

    run(test())


@pytest.mark.parametrize("pieces", [[STREAM_HEAD + b"".join(framed(WHOLE)) + LAST], [STREAM_HEAD, *framed(WHOLE[:-9], WHOLE[-9:]), LAST]])
def test_a_hidden_usage_is_known_all_the_same(pieces: list[bytes]) -> None:
    """However the stream comes, the client sees it without the event that only the gateway asked for."""

    async def test() -> None:
        async with scene(says(*pieces), hide_usage=True) as made:
            made.relay.start(REQUEST)
            assert (await made.client.answer()).body == WHOLE.replace(USAGE_EVENT, b"")
            await until(lambda: made.over)
            assert made.relay.usage == USAGE

    run(test())
