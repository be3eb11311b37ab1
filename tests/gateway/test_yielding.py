"""Yielding in the gateway: the place goes to the more urgent client, and whatever happens meanwhile, nothing is lost or told twice."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from itertools import product
from pathlib import Path
from typing import Any

import orjson
import pytest

from fairlane.gateway.app import Gateway
from fairlane.gateway.links import Speed
from fairlane.policies.yielding import BURST_TOKENS
from fairlane.settings import parse
from fairlane.telemetry.log import Log
from tests.gateway.test_interleavings import (
    ANSWERED,
    EVENTS,
    FAULTS,
    FULL,
    PLAIN,
    PLAIN_HEAD,
    STREAM_HEAD,
    STREAMED,
    Line,
    Step,
    World,
    check,
    chunk,
    outcome_of,
    play,
    rounds,
    says,
)

SETTINGS = """
anonymous: {class: batch, best_class: urgent}
classes: [{name: urgent, max_wait_s: 20}, {name: batch, max_wait_s: 3600, yield_waste: 0.1}]
pools: [{name: main, models: [m], engines: [{name: e, kind: vllm, url: "http://127.0.0.1:9", slots: 1}]}]
"""


def ask(world: World, cls: str, *, stream: bool, tokens: int = 800) -> Line:
    """A client of the class comes and asks."""
    more = b',"stream":true,"stream_options":{"include_usage":true}' if stream else b""
    body = b'{"model":"m","max_tokens":%d,"messages":[{"role":"user","content":"hi"}]%b}' % (tokens, more)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nx-fairlane-class: %b\r\ncontent-length: %d\r\n\r\n" % (
        cls.encode(),
        len(body),
    )
    line = Line(world.gateway.http.protocol(), world._silent)
    world.clients.append(line)
    line.say(head + body)
    return line


def batch(world: World, *, stream: bool) -> None:
    """A client of the last class, at an engine whose pace is known."""
    world._link.speed.observe(100, 1e6)
    ask(world, "batch", stream=stream)


def urgent(world: World, *, stream: bool) -> None:
    """A client of the first class."""
    ask(world, "urgent", stream=stream)


def lines_of(log: bytes) -> list[dict[str, Any]]:
    return [line for line in map(orjson.loads, log.splitlines()) if line["event"] == "request"]


Story = Callable[[World], Coroutine[Any, Any, None]]


def told(story: Story, folder: Path) -> tuple[World, list[dict[str, Any]]]:
    """A story in a world of its own, and the log's lines of its requests."""
    silent, other = socket.socketpair()
    path = folder / "log"

    async def whole(log: Log) -> World:
        world = World(Gateway(parse(SETTINGS, "test.yaml"), log), silent)
        await story(world)
        await rounds(10)
        log.flush()
        return world

    with silent, other, asyncio.Runner() as runner, path.open("w") as sink:
        world = runner.run(whole(Log(sink)))
    check(world, path.read_bytes())
    return world, lines_of(path.read_bytes())


async def answer(world: World) -> None:
    """The engine answers the request that it has, whole."""
    for step in ANSWERED:
        step(world)
        await rounds(4)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
def test_the_urgent_client_is_served_first_and_the_other_once_after_it(stream: bool, tmp_path: Path) -> None:
    """The engine's connection is closed, its request is sent again, whole, and what was made in vain is told and charged to nobody."""

    async def story(world: World) -> None:
        batch(world, stream=stream)
        await rounds(4)
        first = world.busy
        assert first is not None
        urgent(world, stream=False)
        await rounds(4)
        assert first.closing
        assert world.busy is not None
        assert b"hi" in world.busy.written
        await answer(world)
        assert [outcome_of(line) for line in world.clients] == ["nothing", "whole"]
        assert world.busy is not None
        assert [part in line.written for line in (first, world.busy) for part in (b'"content":"hi"', b'"max_tokens":800')] == [True] * 4
        for step in STREAMED if stream else ANSWERED:
            step(world)
            await rounds(4)

    world, rows = told(story, tmp_path)
    assert [outcome_of(line) for line in world.clients] == ["whole", "whole"]
    assert [(row["class"], row.get("yields")) for row in rows] == [("urgent", None), ("batch", 1)]
    page = world.gateway.metrics.render().decode()
    assert 'fairlane_yielded_total{class="batch"} 1.0' in page
    assert f'fairlane_yielded_tokens_total{{class="batch"}} {float(rows[1]["yielded_tokens"])}' in page
    queues = world.gateway.scheduler.pools["main"].queues
    assert [queue.served_cost for queue in queues] == [row["tokens_in"] + 4 * row["tokens_out"] for row in rows]


BEGUN = {True: says(STREAM_HEAD + chunk(EVENTS[0])), False: says(PLAIN_HEAD + PLAIN[:9])}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
def test_an_answer_that_has_begun_is_let_run(stream: bool, tmp_path: Path) -> None:
    """The client would see it break off."""

    async def story(world: World) -> None:
        batch(world, stream=stream)
        await rounds(4)
        BEGUN[stream](world)
        await rounds(4)
        urgent(world, stream=False)
        await rounds(4)
        assert sum(len(line.written) > 0 for line in world.engines) == 1
        for step in STREAMED[2:] if stream else ANSWERED[1:]:
            step(world)
            await rounds(4)
        await answer(world)

    world, rows = told(story, tmp_path)
    assert [(row["class"], row.get("yields")) for row in rows] == [("batch", None), ("urgent", None)]
    assert [outcome_of(line) for line in world.clients] == ["whole", "whole"]


def waste(world: World, *, allowed: bool) -> None:
    """All of the allowance is there, or nothing."""
    allowance = world.gateway.admission.yieldings["main"].allowance
    if allowed:
        allowance.served(10 * BURST_TOKENS)
    else:
        allowance.wasted(BURST_TOKENS)


def pace(world: World, seconds_per_token: float) -> None:
    """The engine is known to be so fast."""
    world._link.speed = Speed()
    world._link.speed.observe(10, 10 * seconds_per_token)


def drain(world: World, *, draining: bool) -> None:
    """The gateway stops, or goes on."""
    waste(world, allowed=True)
    world.gateway.admission.draining = draining


BLOCKS: dict[str, tuple[list[Step], Step]] = {
    "nothing left to waste": ([lambda w: waste(w, allowed=False)], lambda w: waste(w, allowed=True)),
    "too far": ([lambda w: pace(w, 1e-9)], lambda w: pace(w, 1e6)),
    "pace unknown": ([lambda w: setattr(w._link, "speed", Speed())], lambda w: pace(w, 1e6)),
    "engine goes on": ([lambda w: setattr(w._link.lingering, "works_on", True)], lambda w: setattr(w._link.lingering, "works_on", False)),
    "draining": ([lambda w: waste(w, allowed=False), lambda w: drain(w, draining=True)], lambda w: drain(w, draining=False)),
}


@pytest.mark.parametrize("block", BLOCKS)
def test_nobody_gives_way_while_it_must_not_be(block: str, tmp_path: Path) -> None:
    """Where no more may be wasted, where the engine may have made too much of the answer, or would make it for nobody, while the
    gateway drains."""
    blocks, free = BLOCKS[block]

    async def story(world: World) -> None:
        admission = world.gateway.admission
        batch(world, stream=False)
        await rounds(4)
        blocks[0](world)
        urgent(world, stream=False)
        for step in blocks[1:]:
            step(world)
        admission.pump(admission.time())
        await rounds(4)
        assert [line.closing for line in world.engines] == [False]
        free(world)
        admission.pump(admission.time())
        await rounds(4)
        assert [line.closing for line in world.engines] == [True, False]
        await answer(world)
        await answer(world)

    _, rows = told(story, tmp_path)
    assert [row.get("yields") for row in rows] == [None, 1]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_around_a_yield_leaves_nothing_behind(fault: str, stream: bool, tmp_path: Path) -> None:
    """Each fault before each step, with the loop going round often or not at all in between."""
    first, comes = (lambda world: batch(world, stream=stream)), (lambda world: urgent(world, stream=stream))
    answers = STREAMED if stream else ANSWERED
    scripts = (
        [first, first, comes, *answers * 3],
        [first, answers[0], comes, *answers[1:], *answers],
        [first, comes, *FULL["status"], *answers * 2],
    )
    silent, other = socket.socketpair()
    path = tmp_path / "log"

    async def scenario(log: Log, steps: list[Step], at: int, pause: int) -> World:
        world = World(Gateway(parse(SETTINGS, "test.yaml"), log), silent)
        await play(world, steps, fault, at=at, pause=pause)
        log.flush()
        return world

    yields = 0
    with silent, other, asyncio.Runner() as runner:
        for steps, pause in product(scripts, (0, 1, 4)):
            for at in range(len(steps) + 1):
                with path.open("w") as sink:
                    world = runner.run(scenario(Log(sink), steps, at, pause))
                check(world, path.read_bytes())
                yields += sum(row.get("yields", 0) for row in lines_of(path.read_bytes()))
    assert yields > 0
