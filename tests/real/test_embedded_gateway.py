"""The gateway with its own engine: started with it, started again when it dies, gone with it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

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


def test_slots_of_the_engine_are_the_limit(gateway: Gateway) -> None:
    """Of six requests at once two run, and the engine itself never has one waiting."""
    calls = [gateway.open({**BODY, "max_tokens": 24}) for _ in range(6)]
    gateway.wait_for(running=2, waiting=4)
    assert gateway.metric("fairlane_engine_slots") == 2
    answers = [call.finish(60) for call in calls]
    assert [answer.status for answer in answers] == [200] * 6
    assert all(answer.header("x-fairlane-class") == "free" for answer in answers)
