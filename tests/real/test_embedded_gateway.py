"""The gateway with its own engine: started with it, started again when it dies, gone with it."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from fairlane.engines.llamacpp import LlamaCpp
from tests.engines.record import get, listening_url
from tests.harness import Gateway, Json
from tests.meters import until

pytestmark = pytest.mark.engine

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 4, "temperature": 0}


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    """A gateway whose only engine is embedded, with an alias for the model; the engine ends with it."""
    engine = {"name": "own", "kind": "embedded", "slots": 2, "probe_s": 0.5}
    pool = {"name": "main", "models": [{"tiny": "smollm2-135m"}], "engines": [engine]}
    configuration: Json = {"server": {"drain_s": 5}, "pools": [pool], "anonymous": {"class": "free"}}
    with Gateway(configuration, tmp_path) as running:
        yield running
        running.assert_idle()
    assert not any(alive(pid) for pid in engine_pids(running))


def engine_pids(gateway: Gateway) -> list[int]:
    """The processes of embedded engines that the gateway has started so far."""
    return [int(pid) for pid in re.findall(r'"embedded_engine_started".*?"pid":(\d+)', gateway.stderr())]


def alive(pid: int) -> bool:
    """Whether a process exists."""
    return Path(f"/proc/{pid}").exists()


def test_a_dead_engine_is_started_again(gateway: Gateway) -> None:
    """After kill -9 of the engine the gateway says 503, starts another and serves again."""
    assert gateway.post(BODY).status == 200
    until(lambda: bool(engine_pids(gateway)), "the start is logged")
    (first,) = engine_pids(gateway)
    os.kill(first, signal.SIGKILL)
    until(lambda: gateway.admin("/readyz")[0] == 503, "the loss is noticed", 5)
    refused = gateway.post(BODY)
    assert (refused.status, refused.code) == (503, "no_engine")
    until(lambda: gateway.admin("/readyz")[0] == 200, "another engine is up", 30)
    assert gateway.post(BODY).status == 200
    until(lambda: len(engine_pids(gateway)) > 1, "the second start is logged")
    assert first not in engine_pids(gateway)[1:]


class Pages:
    """The pages of metrics of the gateway's engine, asked of it directly and without a pause for as long as the block lasts."""

    def __init__(self, gateway: Gateway) -> None:
        until(lambda: bool(engine_pids(gateway)), "the start is logged")
        self._url = listening_url(engine_pids(gateway)[-1]) + "/metrics"
        self._stopping = threading.Event()
        self._reading = threading.Thread(target=self._read)
        self.loads: list[tuple[int, int]] = []  # requests that run and that are deferred

    def __enter__(self) -> Self:
        self._reading.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._reading.join()

    def _read(self) -> None:
        while not self._stopping.is_set():
            gauges = LlamaCpp().read([(200, b""), (0, b""), get(self._url)]).gauges
            if gauges is not None and gauges.running is not None and gauges.waiting is not None:
                self.loads.append((gauges.running, gauges.waiting))


def test_nothing_waits_inside_the_engine(gateway: Gateway) -> None:
    """Of twelve requests at once two run, one more that asks for two answers runs alone, and no page tells of one that is deferred."""
    bodies = [{**BODY, "max_tokens": 16, "stream": number % 2 == 0} for number in range(12)]
    with Pages(gateway) as pages:
        calls = [gateway.open(body) for body in [*bodies, {**BODY, "n": 2}]]
        until(lambda: gateway.metric("fairlane_engine_told_running_requests") == 2, "the gateway is told of two", 20)
        answers = [call.finish(60) for call in calls]
    assert [answer.status for answer in answers] == [200] * 13
    assert set(pages.loads) >= {(2, 0)}
    assert set(pages.loads) <= {(0, 0), (1, 0), (2, 0)}
    assert gateway.metric("fairlane_engine_told_waiting_requests") == 0
    assert gateway.metric("fairlane_engine_metrics_up") == 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_left_has_freed_its_slot_before_it_is_given_out(gateway: Gateway, *, stream: bool) -> None:
    """Half of the callers leave while their answers are made, which goes on where they do not stream; those that waited are not
    deferred behind that, but start when the engine has the slots."""
    long = {**BODY, "max_tokens": 200, "ignore_eos": True, "stream": stream}
    with Pages(gateway) as pages:
        leaving = [gateway.open(long) for _ in range(2)]
        until(lambda: (2, 0) in pages.loads, "the engine has both", 20)
        staying = [gateway.open(BODY) for _ in range(2)]
        gateway.wait_for(running=2, waiting=2)
        for call in leaving:
            call.close()
        assert [call.finish(60).status for call in staying] == [200, 200]
    assert set(pages.loads) <= {(0, 0), (1, 0), (2, 0)}


def test_slots_of_the_engine_are_the_limit(gateway: Gateway) -> None:
    """Of six requests at once two run, and the engine itself never has one waiting."""
    calls = [gateway.open({**BODY, "max_tokens": 24}) for _ in range(6)]
    gateway.wait_for(running=2, waiting=4)
    assert gateway.metric("fairlane_engine_slots") == 2
    answers = [call.finish(60) for call in calls]
    assert [answer.status for answer in answers] == [200] * 6
    assert all(answer.header("x-fairlane-class") == "free" for answer in answers)
