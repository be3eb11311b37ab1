"""Stopping: what waits and runs may end, a second signal ends it at once, and the log tells how each request ended."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.caller import chat, finish
from tests.harness import Gateway, engine, settings
from tests.meters import until
from tests.stub import Plan, Stub


@pytest.fixture
def gateway(stub: Stub, tmp_path: Path) -> Iterator[Gateway]:
    """A gateway with one slot, which the tests stop themselves."""
    with Gateway(settings([engine(stub, 1)]), tmp_path) as running:
        yield running


def lines(gateway: Gateway, event: str) -> list[dict[str, object]]:
    """The log lines of an event."""
    every = [json.loads(line) for line in gateway.stderr().splitlines() if line.startswith("{")]
    return [line for line in every if line["event"] == event]


def test_fc_55_a_stop_serves_what_runs_and_waits(stub: Stub, gateway: Gateway) -> None:
    """After SIGTERM readiness fails, running and waiting requests are answered, and the process ends by itself."""
    stub.plan = Plan(delay_s=0.5)
    calls = [gateway.open(chat("hi")) for _ in range(3)]
    gateway.wait_for(running=1, waiting=2)
    gateway.process.send_signal(signal.SIGTERM)
    until(lambda: gateway.admin("/readyz")[0] == 503, "readiness fails", 2)
    assert [answer.status for answer in finish(calls)] == [200] * 3
    assert gateway.process.wait(5) == 0
    assert lines(gateway, "stopped")[0]["cut_off"] == 0


def test_a_second_signal_sheds_what_waits_and_cuts_what_runs(stub: Stub, gateway: Gateway) -> None:
    """The waiting client gets 503 `draining` with a time to come back, the running one sees its stream cut."""
    stub.plan = Plan(texts=("x",) * 1000, interval_s=0.05)
    running = gateway.open(chat("hi", stream=True))
    gateway.wait_for(running=1)
    waiting = gateway.open(chat("hi"))
    gateway.wait_for(waiting=1)
    gateway.process.send_signal(signal.SIGINT)
    until(lambda: gateway.admin("/readyz")[0] == 503, "draining has begun", 2)
    gateway.process.send_signal(signal.SIGINT)
    refused, cut = finish([waiting, running])
    assert (refused.status, refused.code) == (503, "draining")
    assert refused.header("retry-after") is not None
    assert not cut.whole
    assert gateway.process.wait(5) == 0
    assert lines(gateway, "stopped")[0]["cut_off"] == 1
    outcomes = {(line["status"], line["outcome"], line["reason"]) for line in lines(gateway, "request")}
    assert outcomes == {(503, "evicted", "draining"), (200, "failed", "draining")}


def test_what_is_cut_off_before_its_answer_is_logged_with_what_it_got(stub: Stub, gateway: Gateway) -> None:
    """A running request that has no answer yet gets 503 at the second signal, and the log says the same."""
    stub.plan = Plan(held=True)
    running = gateway.open(chat("hi"))
    gateway.wait_for(running=1)
    gateway.process.send_signal(signal.SIGINT)
    until(lambda: gateway.admin("/readyz")[0] == 503, "draining has begun", 2)
    gateway.process.send_signal(signal.SIGINT)
    answer = running.finish()
    assert (answer.status, answer.code) == (503, "draining")
    assert gateway.process.wait(5) == 0
    assert [(line["status"], line["outcome"], line["reason"]) for line in lines(gateway, "request")] == [(503, "evicted", "draining")]


def test_the_log_tells_a_silent_engine_from_a_broken_one(stub: Stub, tmp_path: Path) -> None:
    """A stream that was cut for its silence is logged as a timeout of the engine, though its status was 200."""
    with Gateway(settings([engine(stub, 1, idle_s=0.2)]), tmp_path) as gateway:
        stub.plan = Plan(texts=("x", "y"), interval_s=2)
        assert not gateway.post(chat("hi", stream=True)).whole
        until(lambda: bool(lines(gateway, "request")), "the request is logged", 3)
        line = lines(gateway, "request")[0]
        assert (line["status"], line["outcome"], line["reason"]) == (200, "failed", "engine_timeout")
