"""Who works on an answer: told when nobody wants it, when the client has all of it, and kept apart from the next request."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count

import pytest

from fairlane.errors import Reason
from fairlane.gateway.wire import http1
from fairlane.gateway.wire.exchange import Exchange
from tests.gateway.wire.server.asking import ask, post
from tests.gateway.wire.sockets import GET, End, Listener, connect, run, serving, until

BIG = 32 << 20  # bytes: more than any kernel keeps for a client that does not read


class Worker:
    """A worker that notes that it was told to stop, and may make a mistake of it."""

    def __init__(self, *, stumbles: bool = False) -> None:
        self.abandoned = 0
        self._stumbles = stumbles

    def abandon(self) -> None:
        self.abandoned += 1
        if self._stumbles:
            raise ValueError("stumbled")


class Source:
    """A worker that is the source of its answer too, and notes what it is told."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def pause(self) -> None:
        self._calls.append("pause")

    def resume(self) -> None:
        self._calls.append("resume")

    def abandon(self) -> None:
        self._calls.append("abandon")


def sourced(calls: list[str], exchanges: list[Exchange]) -> Callable[[Exchange], None]:
    """Serves an answer of open length by a `Source` with these calls, and keeps its exchange."""

    def serve(exchange: Exchange) -> None:
        exchange.flow = exchange.worker = Source(calls)
        exchange.start(200, b"", None)
        exchanges.append(exchange)

    return serve


def with_client(serve: Callable[[Exchange], None], test: Callable[[Listener, End], Awaitable[None]], message: bytes = GET) -> None:
    """Run a test with a client that has sent its request."""

    async def talk() -> None:
        async with serving(serve, stall_s=5) as listener:
            client = await connect(listener.port, receive_bytes=8192)
            await client.send(message)
            await until(lambda: any(c.current is not None or c.behind for c in listener.server.connections))
            await test(listener, client)

    run(talk())


# Told to stop.


@pytest.mark.parametrize("stumbles", [False, True])
def test_a_worker_is_told_once_that_its_client_left(stumbles: bool) -> None:
    """What it raises is reported, and nothing else of the connection suffers from it."""
    worker = Worker(stumbles=stumbles)
    seen: list[Exchange] = []

    def serve(exchange: Exchange) -> None:
        exchange.worker = worker
        seen.append(exchange)

    async def leave(listener: Listener, client: End) -> None:
        client.leave()
        await until(lambda: not listener.server.connections)
        assert (worker.abandoned, seen[0].gone, seen[0].worker) == (1, True, None)
        assert [str(error) for error in listener.errors] == ["stumbled"] * stumbles
        seen[0].respond(200, b"", b"for nobody")
        seen[0].abandon()
        assert worker.abandoned == 1

    with_client(serve, leave)


def test_a_worker_that_has_answered_is_left_alone() -> None:
    """A client that leaves after the answer, or with its last bytes on their way, abandons nobody."""
    worker = Worker()
    flushed: list[bool] = []

    def serve(exchange: Exchange) -> None:
        exchange.worker = worker
        exchange.respond(200, b"", bytes(BIG))
        exchange.when_flushed(lambda: flushed.append(exchange.gone))

    async def leave(listener: Listener, client: End) -> None:
        assert flushed == []
        client.leave()
        await until(lambda: not listener.server.connections)
        assert (worker.abandoned, flushed) == (0, [True])

    with_client(serve, leave)


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("stumbles", [False, True])
def test_a_refusal_in_between_stops_the_worker(started: bool, stumbles: bool) -> None:
    """The client gets it where nothing was sent yet, and else sees a cut; the worker is told either way."""
    worker = Worker(stumbles=stumbles)
    seen: list[Exchange] = []

    def serve(exchange: Exchange) -> None:
        exchange.worker = worker
        seen.append(exchange)
        if started:
            exchange.start(200, b"", None)
            exchange.write(b"part")

    async def refuse(listener: Listener, client: End) -> None:
        seen[0].refuse((503, b"", b"no"))
        answer = await client.answer()
        assert (answer.status, answer.body, answer.cut) == ((200, b"part", True) if started else (503, b"no", False))
        assert await client.closed()
        assert worker.abandoned == 1
        assert len(listener.errors) == stumbles

    with_client(serve, refuse)


def test_who_raises_after_it_found_a_worker_stops_that_too() -> None:
    """The mistake is reported and the client gets a 500."""
    worker = Worker()

    def serve(exchange: Exchange) -> None:
        exchange.worker = worker
        raise ValueError("late")

    async def talk() -> None:
        async with serving(serve) as listener:
            client = await connect(listener.port)
            await client.send(GET)
            answer = await client.answer()
            assert (answer.status, answer.code) == (500, Reason.INTERNAL)
            assert await client.closed()
            assert ([str(error) for error in listener.errors], worker.abandoned) == (["late"], 1)

    run(talk())


# Flushed.


def test_what_has_left_is_flushed_at_once() -> None:
    """The normal case waits for nothing: the kernel took all of it."""
    calls: list[str] = []

    def serve(exchange: Exchange) -> None:
        exchange.when_flushed(lambda: calls.append("before"))
        assert calls == ["before"]
        exchange.respond(200, b"", b"short")
        exchange.when_flushed(lambda: calls.append("after"))
        assert calls == ["before", "after"]

    [answer] = ask(GET, serve=serve)
    assert answer.body == b"short"


def test_all_who_wait_for_the_last_byte_are_told_once() -> None:
    """In their order, each whatever the others do, and while the next request runs already."""
    asked = count()
    calls: list[int] = []

    def note(number: int) -> None:
        calls.append(number)
        if number == 1:
            raise ValueError("stumbled")

    def serve(exchange: Exchange) -> None:
        exchange.respond(200, b"", bytes(BIG if exchange.head.path == "/" else 5))
        for _ in range(2):
            exchange.when_flushed(partial(note, next(asked)))

    async def read(listener: Listener, client: End) -> None:
        await asyncio.sleep(0.02)
        assert calls == []
        assert len((await client.answer()).body) == BIG
        assert len((await client.answer()).body) == 5
        await until(lambda: calls)
        assert calls == [0, 1, 2, 3]
        assert [str(error) for error in listener.errors] == ["stumbled"]

    with_client(serve, read, GET + b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n")


# Writing.


def test_framed_chunks_pass_as_they_are() -> None:
    """With the head, behind it, and beside pieces that are framed here; a client of HTTP/1.0 cannot have them."""

    def serve(exchange: Exchange) -> None:
        exchange.start(200, b"", None)
        assert exchange.chunked != exchange.head.http_10
        if exchange.chunked:
            exchange.pass_framed(b"3\r\none\r\n4\r\n two\r\n")
            exchange.write(b" three")
            exchange.pass_framed(b"5\r\n four\r\n")
        exchange.end(b" five")
        exchange.pass_framed(b"3\r\nout\r\n")

    for head, body in ((GET, b"one two three four five"), (b"GET / HTTP/1.0\r\n\r\n", b" five")):
        [answer] = ask(head, serve=serve)
        assert (answer.body, answer.cut) == (body, False)


@pytest.mark.parametrize("framed", [False, True])
def test_a_source_waits_only_when_much_is_waiting(framed: bool) -> None:
    """Some bytes may wait in the send buffer; its source is paused beyond the limit, once, and resumed when all have left."""
    calls: list[str] = []
    exchanges: list[Exchange] = []

    def write(exchange: Exchange) -> None:
        if framed:
            exchange.pass_framed(b"1000\r\n" + bytes(4096) + b"\r\n")
        else:
            exchange.write(bytes(4096))

    async def stream(listener: Listener, client: End) -> None:
        [exchange] = exchanges
        [connection] = listener.server.connections
        size = connection.transport.get_write_buffer_size
        written = 0
        while not exchange.paused:
            assert size() <= http1.SEND_BUFFER_BYTES
            assert calls == []
            write(exchange)
            written += 4096
        written += 4096
        write(exchange)
        assert calls == ["pause"]
        assert http1.SEND_BUFFER_BYTES < size() < http1.SEND_BUFFER_BYTES + 3 * 4096
        answer = asyncio.create_task(client.answer())
        await until(lambda: calls == ["pause", "resume"])
        assert size() == 0
        exchange.end()
        assert len((await answer).body) == written

    with_client(sourced(calls, exchanges), stream)


def test_a_source_that_was_not_paused_is_not_resumed() -> None:
    """A client that is a little behind and catches up is no business of the source's."""
    calls: list[str] = []
    exchanges: list[Exchange] = []

    async def stream(listener: Listener, client: End) -> None:
        [connection] = listener.server.connections
        while not connection.behind:
            exchanges[0].write(bytes(4096))
        answer = asyncio.create_task(client.answer())
        await until(lambda: not connection.behind)
        assert calls == []
        exchanges[0].end()
        assert not (await answer).cut

    with_client(sourced(calls, exchanges), stream)


def test_the_source_of_the_next_answer_waits_for_a_long_one_before_it() -> None:
    """It finds itself paused from the start, and is resumed with the last byte of the other."""
    calls: list[str] = []
    exchanges: list[Exchange] = []

    def serve(exchange: Exchange) -> None:
        exchanges.append(exchange)
        if exchange.head.path == "/":
            exchange.respond(200, b"", bytes(BIG))
        else:
            exchange.flow = exchange.worker = Source(calls)

    async def read(listener: Listener, client: End) -> None:
        await until(lambda: len(exchanges) == 2)
        assert exchanges[1].paused
        assert len((await client.answer()).body) == BIG
        await until(lambda: calls == ["resume"])
        assert not exchanges[1].paused
        exchanges[1].respond(200, b"", b"next")
        assert (await client.answer()).body == b"next"
        assert listener.errors == []

    with_client(serve, read, GET + b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n")


# One after the other.


@pytest.mark.parametrize("held", [False, True])
def test_a_request_that_arrives_as_an_answer_ends_waits_its_turn(held: bool) -> None:
    """Another request is due already, parsed or held back: what comes in that very moment does not overtake it."""
    served: list[Exchange] = []

    def serve(exchange: Exchange) -> None:
        exchange.worker = Worker()
        served.append(exchange)

    async def talk() -> None:
        async with serving(serve) as listener:
            client = await connect(listener.port)
            await client.send(post(b"0"))
            await until(lambda: len(served) == 1)
            [connection] = listener.server.connections
            served[0].respond(200, b"", b"0")
            if held:
                connection.data_received(post(b"1"))
                connection.data_received(post(b"2"))
            else:
                connection.data_received(post(b"1") + post(b"2"))
            served[1].respond(200, b"", b"1")
            connection.data_received(post(b"3"))
            for number in (2, 3):
                await until(lambda number=number: len(served) > number)  # type: ignore[misc]
                served[number].respond(200, b"", served[number].body)
            assert [exchange.body for exchange in served] == [b"0", b"1", b"2", b"3"]
            assert [(await client.answer()).body for _ in range(4)] == [b"0", b"1", b"2", b"3"]

    run(talk())
