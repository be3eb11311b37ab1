"""Every interleaving of a request's life with what may go wrong: nothing is lost, answered twice, told twice or left held.

The gateway is the real one, from bytes in to bytes out. Only the sockets are played, so that each event comes exactly when the
script says, and each fault can be put between any two of them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from fairlane.engines.adapter import Report
from fairlane.errors import Reason
from fairlane.gateway.app import Gateway
from fairlane.gateway.run import Run
from fairlane.settings import parse
from fairlane.telemetry.log import Log

SETTINGS = """
anonymous: {class: free}
pools: [{name: main, models: [m], engines: [{name: e, kind: vllm, url: "http://127.0.0.1:9", slots: 1}]}]
"""
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENTS = [b'data: {"choices":[{"a":%d}]}\n\n' % number for number in range(3)]
DONE = b"data: [DONE]\n\n"
PLAIN = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'


PLAIN_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(PLAIN)


def post(*, stream: bool) -> bytes:
    """A chat request; the client of a stream asks for its usage itself."""
    more = b',"stream":true,"stream_options":{"include_usage":true}' if stream else b""
    body = b'{"model":"m","max_tokens":8,"messages":[{"role":"user","content":"hi"}]%b}' % more
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


BUSY = b'{"error":{"message":"busy","type":"Service Unavailable","param":null,"code":503}}'


def chunk(data: bytes) -> bytes:
    """One chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Line:
    """A transport without a network: what is written is kept, and its end is told to the protocol in a later round of the loop."""

    def __init__(self, protocol: asyncio.Protocol, silent: socket.socket) -> None:
        self.protocol = protocol
        self.written = b""
        self.closing = False
        self._silent = silent
        protocol.connection_made(cast("asyncio.Transport", self))

    def say(self, data: bytes) -> None:
        """The other end sends; nothing arrives after an end."""
        if not self.closing:
            self.protocol.data_received(data)

    def write(self, data: bytes) -> None:
        """Keeps it."""
        self.written += data

    def abort(self) -> None:
        """Ends it, from either side."""
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    close = abort

    def is_closing(self) -> bool:
        """Whether its end has begun."""
        return self.closing

    def get_write_buffer_size(self) -> int:
        """The other end reads at once."""
        return 0

    def get_extra_info(self, name: str) -> object:
        """An address, and a socket on which nothing arrives."""
        return ("127.0.0.1", 1) if name == "peername" else self._silent

    def ignore(self, *_: object) -> None:
        """Buffers and half-closing mean nothing here."""

    set_write_buffer_limits = write_eof = pause_reading = resume_reading = ignore


class World:
    """A gateway with one engine of one slot; `clients` and `engines` are the lines to each, in the order of their making."""

    def __init__(self, gateway: Gateway, silent: socket.socket) -> None:
        self.gateway = gateway
        self.clients: list[Line] = []
        self.engines: list[Line] = []
        self.reachable = True
        self._silent = silent
        self._link = gateway.links["main", "e"]
        gateway.loop.create_connection = self._connected  # type: ignore[method-assign, assignment]
        self._link.connect_to("http://127.0.0.1:9")
        self.recover()

    def recover(self) -> None:
        """A probe has found the engine well, and if it was full a moment has passed."""
        self._link._set_up(Report(healthy=True))
        self._link._has_room()

    async def _connected(self, make: Callable[[], asyncio.Protocol], *_: object, **__: object) -> tuple[Line, asyncio.Protocol]:
        await asyncio.sleep(0)
        if not self.reachable:
            raise ConnectionRefusedError
        protocol = make()
        self.engines.append(Line(protocol, self._silent))
        await asyncio.sleep(0)
        return self.engines[-1], protocol

    def client(self, *, stream: bool) -> None:
        """A client comes and asks."""
        self.clients.append(Line(self.gateway.http.protocol(), self._silent))
        self.clients[-1].say(post(stream=stream))

    @property
    def busy(self) -> Line | None:
        """The engine's connection that has an unanswered request."""
        return next((line for line in self.engines if line.written and not line.closing), None)

    def engine_says(self, data: bytes) -> None:
        """The next bytes of the answer that is being given, if one is."""
        if self.busy is not None:
            self.busy.say(data)

    def engine_ends(self, data: bytes) -> None:
        """The last bytes of an answer."""
        line = self.busy
        if line is not None:
            line.written = b""
            line.say(data)


Step = Callable[[World], None]


def says(data: bytes) -> Step:
    """The engine goes on with its answer."""
    return lambda world: world.engine_says(data)


def ends(data: bytes) -> Step:
    """The engine's answer is complete with this."""
    return lambda world: world.engine_ends(data)


STREAMED = [says(STREAM_HEAD), *(says(chunk(event)) for event in (*EVENTS, DONE)), ends(b"0\r\n\r\n")]
ANSWERED = [says(PLAIN_HEAD + PLAIN[:9]), ends(PLAIN[9:])]


def script(*, stream: bool) -> list[Step]:
    """Three clients ask; one is served, the others wait their turn."""
    return [lambda world: world.client(stream=stream)] * 3 + (STREAMED if stream else ANSWERED) * 3


FULL = {
    "status": [says(b"HTTP/1.1 503 Busy\r\ncontent-length: %d\r\n\r\n" % len(BUSY)), ends(BUSY)],
    "event": [says(STREAM_HEAD), says(chunk(b"data: " + BUSY[:9])), ends(chunk(BUSY[9:] + b"\n\n") + b"0\r\n\r\n")],
}


def cut(*chosen: str) -> Step:
    """These ends are gone at once, in this order: "first", "second" or "clients", and "engines"."""

    def fault(world: World) -> None:
        lines = {"first": world.clients[:1], "second": world.clients[1:2], "clients": world.clients, "engines": world.engines}
        for name in chosen:
            for line in lines[name]:
                line.abort()

    return fault


def lose_engine(world: World) -> None:
    """The engine is gone, and cannot be reached for a while."""
    world.reachable = False
    cut("engines")(world)


FAULTS: dict[str, Step] = {
    "none": lambda _: None,
    "first client leaves": cut("first"),
    "second client leaves": cut("second"),
    "all clients leave": cut("clients"),
    "engine breaks off": cut("engines"),
    "client and engine leave at once": cut("first", "engines"),
    "engine and client leave at once": cut("engines", "first"),
    "engine is gone": lose_engine,
    "engine sends garbage": says(b"\x00garbage\r\n\r\n"),
    "what waits is shed": lambda world: world.gateway.admission.evict_all(Reason.DRAINING),
    "the gateway stops": lambda world: world.gateway.admission.cut_all(),
    "everything is cut": lambda world: world.gateway.http.cut(),
}


async def rounds(count: int) -> None:
    """Lets the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


async def play(world: World, steps: list[Step], fault: str, *, at: int, pause: int) -> None:
    """Goes through the steps with the fault before the given one; whoever is left is served in the end."""
    for number, step in enumerate([*steps, FAULTS["none"]]):
        if number == at:
            FAULTS[fault](world)
            await rounds(pause)
        step(world)
        await rounds(pause)
    await rounds(10)
    world.reachable = True
    world.recover()
    for _ in range(6):
        await rounds(10)
        for step in ANSWERED:
            step(world)
            await rounds(2)


def outcome_of(line: Line) -> str:
    """How a client's answer looks from outside."""
    if not line.written:
        return "nothing"
    assert line.written.count(b"HTTP/1.1 ") == 1
    head, _, body = line.written.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        assert orjson.loads(body)["error"]["code"]
        return "refused"
    if b"chunked" in head:
        return "whole" if body.endswith(b"0\r\n\r\n") else "broken"
    return "whole" if len(body) == len(PLAIN) else "broken"  # garbage inside of it is for the client to judge


def check(world: World, log: bytes) -> None:
    """Each client was answered at most once and told of exactly once, and nothing is held any more."""
    gateway = world.gateway
    pool = gateway.scheduler.pools["main"]
    assert gateway.admission.holders == {}
    assert (pool.queued, pool.places.running) == (0, 0)
    assert all(t.running == t.queued == 0 for t in gateway.scheduler.tenants.values())
    lines = [orjson.loads(line) for line in log.splitlines()]
    told = [line for line in lines if line["event"] == "request"]
    assert len(told) == len(world.clients)
    assert not [line for line in lines if line["event"] == "internal_error"]
    for line in world.clients:
        outcome = outcome_of(line)
        if outcome in ("nothing", "broken"):
            assert line.closing
    left = sum(not line.closing for line in world.clients)
    assert len(gateway.http.connections) == left
    connections = gateway.links["main", "e"].connections
    assert connections is not None
    assert connections.open_connections == sum(not line.closing for line in world.engines)
    sums = [row["outcome"] for row in told]
    assert sums.count("completed") >= sum(outcome_of(line) == "whole" for line in world.clients if line.closing is False)


async def scenario(log: Log, silent: socket.socket, steps: list[Step], fault: str, *, at: int, pause: int) -> World:
    """A whole run in a world of its own."""
    world = World(Gateway(parse(SETTINGS, "test.yaml"), log), silent)
    await play(world, steps, fault, at=at, pause=pause)
    log.flush()
    return world


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_between_any_two_events_leaves_nothing_behind(fault: str, stream: bool, tmp_path: Path) -> None:
    """Each fault before each step of three requests, with the loop going round often or not at all in between."""
    steps = script(stream=stream)
    silent, other = socket.socketpair()
    path = tmp_path / "log"
    with silent, other, asyncio.Runner() as runner:
        for pause in (0, 1, 4):
            for at in range(len(steps) + 1):
                with path.open("w") as sink:
                    world = runner.run(scenario(Log(sink), silent, steps, fault, at=at, pause=pause))
                check(world, path.read_bytes())


@pytest.mark.parametrize("way", FULL)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_around_an_engines_being_full_leaves_nothing_behind(fault: str, way: str, tmp_path: Path) -> None:
    """The same where the engine refuses the first request for want of room, and serves all three after a while."""
    ask, answers = script(stream=True)[:3], script(stream=True)[3:]
    steps = [*ask, *FULL[way], World.recover, *answers]
    silent, other = socket.socketpair()
    path = tmp_path / "log"
    with silent, other, asyncio.Runner() as runner:
        for pause in (0, 1, 4):
            for at in range(len(steps) + 1):
                with path.open("w") as sink:
                    world = runner.run(scenario(Log(sink), silent, steps, fault, at=at, pause=pause))
                check(world, path.read_bytes())
                if fault == "none" and pause == 4:
                    assert [outcome_of(line) for line in world.clients] == ["whole"] * 3


def logged(story: Callable[[Log, socket.socket], Coroutine[Any, Any, World]], folder: Path) -> tuple[World, list[dict[str, Any]]]:
    """The world that a story leaves, and the lines of its log."""
    silent, other = socket.socketpair()
    path = folder / "log"
    with silent, other, asyncio.Runner() as runner, path.open("w") as sink:
        world = runner.run(story(Log(sink), silent))
    return world, [orjson.loads(line) for line in path.read_bytes().splitlines()]


@pytest.mark.source
def test_a_mistake_of_ours_while_a_client_leaves_frees_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be settled is freed all the same, and the mistake is logged."""

    def mistake(*_: object) -> None:
        raise RuntimeError

    async def leave(log: Log, silent: socket.socket) -> World:
        world = World(Gateway(parse(SETTINGS, "test.yaml"), log), silent)
        world.client(stream=True)
        await rounds(4)
        world.engine_says(STREAM_HEAD + chunk(EVENTS[0]))
        monkeypatch.setattr(Run, "_usage", mistake)
        world.clients[0].abort()
        await rounds(4)
        log.flush()
        return world

    world, told = logged(leave, tmp_path)
    assert world.gateway.admission.holders == {}
    assert world.gateway.scheduler.pools["main"].places.running == 0
    assert world.engines[0].closing
    events = [line["event"] for line in told]
    assert (events.count("internal_error"), events.count("request")) == (1, 1)


def test_an_answer_that_is_on_its_way_outlasts_the_stop(tmp_path: Path) -> None:
    """What the engine has answered in full may still reach a slow client while all else is cut, and counts as answered."""

    async def stop(log: Log, silent: socket.socket) -> World:
        world = World(Gateway(parse(SETTINGS, "test.yaml"), log), silent)
        world.client(stream=False)
        await rounds(4)
        client = world.clients[0]
        client.protocol.pause_writing()  # as a transport that has something left to send
        for step in ANSWERED:
            step(world)
        world.gateway.admission.cut_all()
        await rounds(4)
        assert not client.closing
        client.protocol.resume_writing()
        await rounds(4)
        log.flush()
        return world

    world, told = logged(stop, tmp_path)
    assert world.gateway.admission.holders == {}
    assert [(line["status"], line["outcome"], line["reason"]) for line in told if line["event"] == "request"] == [(200, "completed", None)]
