"""Engines that an operator drains, on the live gateway."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.caller import chat, finish
from tests.harness import engine, settings
from tests.inside import Inside
from tests.meters import until
from tests.stub import Plan, Stub


@pytest.fixture
def stubs() -> Iterator[tuple[Stub, Stub]]:
    """Two scripted upstreams."""
    with Stub() as one, Stub() as two:
        yield one, two
        assert (one.faults, two.faults) == ([], [])


@pytest.fixture
def gateway(stubs: tuple[Stub, Stub], tmp_path: Path) -> Iterator[Inside]:
    """A gateway with the two as engines of two slots."""
    with Inside(settings([engine(stub, 2, name) for stub, name in zip(stubs, "ab", strict=True)]), tmp_path) as inside:
        inside.wait_for_engines("a", "b")
        yield inside
        inside.assert_idle()


def order(gateway: Inside, name: str, what: str) -> dict[str, object]:
    """Drains or resumes an engine, and returns how it is then."""
    status, body = gateway.admin(f"/admin/engines/{name}/{what}", "POST")
    assert status == 200, body
    row = json.loads(body)
    assert isinstance(row, dict)
    return row


def test_a_drained_engine_ends_what_it_runs_and_gets_nothing_new(stubs: tuple[Stub, Stub], gateway: Inside) -> None:
    """Its stream goes on; all else goes to the other, until it is resumed and shares what waits. It is up and ready all the while."""
    one, two = stubs
    one.plan = two.plan = Plan(held=True)
    calls = [gateway.open(chat(stream=True)) for _ in range(2)]
    until(lambda: (len(one.running), len(two.running)) == (1, 1), "one runs on each")
    for _ in range(2):
        row = order(gateway, "a", "drain")
        assert (row["draining"], row["leaving"], row["up"], row["running"]) == (True, False, True, 1)
    calls += [gateway.open(chat()) for _ in range(3)]
    gateway.wait_for(running=3, waiting=2)
    assert (len(one.running), len(two.running), gateway.admin("/readyz")[0]) == (1, 2, 200)
    one.release_all()
    assert calls[0].finish().whole
    probes = len(one.probes)
    until(lambda: len(one.probes) > probes + 1, "it is probed on")
    assert (gateway.engines()["a"]["running"], gateway.waiting()) == (0, 2)
    assert json.loads(gateway.admin("/admin/state")[1])["engines"][0]["draining"]
    assert gateway.metric("fairlane_engine_draining", engine="a") == 1
    assert not order(gateway, "a", "resume")["draining"]
    until(lambda: len(one.running) == 2, "it takes what waits")
    one.plan = two.plan = Plan()
    one.release_all()
    two.release_all()
    assert [answer.status for answer in finish(calls[1:])] == [200] * 4
    assert (gateway.events().count("engine_draining"), gateway.events().count("engine_resumed")) == (1, 1)


def test_with_all_engines_drained_there_is_none(stubs: tuple[Stub, Stub], gateway: Inside) -> None:
    """New requests get what they get without an engine, what runs ends, and one engine resumed is enough."""
    stubs[0].plan = stubs[1].plan = Plan(held=True)
    call = gateway.open(chat())
    gateway.wait_for(running=1)
    order(gateway, "a", "drain")
    order(gateway, "b", "drain")
    refused = gateway.open(chat()).finish()
    assert (refused.status, refused.code, gateway.admin("/readyz")[0]) == (503, "no_engine", 503)
    for stub in stubs:
        stub.plan = Plan()
        stub.release_all()
    assert call.finish().status == 200
    order(gateway, "b", "resume")
    assert (gateway.open(chat()).finish().status, gateway.admin("/readyz")[0]) == (200, 200)


def test_an_engine_that_is_lost_while_it_drains_stays_drained(stubs: tuple[Stub, Stub], gateway: Inside) -> None:
    """Its request breaks, and when it is back it still gets nothing."""
    one, two = stubs
    one.plan = two.plan = Plan(held=True)
    calls = [gateway.open(chat()) for _ in range(2)]
    until(lambda: (len(one.running), len(two.running)) == (1, 1), "one runs on each")
    order(gateway, "a", "drain")
    one.refuse()
    one.reset_running()
    assert calls[0].finish().status == 502
    until(lambda: not gateway.engines()["a"]["up"], "it is lost")
    one.accept()
    until(lambda: gateway.engines()["a"]["up"], "it is back")
    two.plan = Plan()
    two.release_all()
    assert [gateway.open(chat()).finish().status for _ in range(4)] == [200] * 4
    assert (calls[1].finish().status, len(one.requests)) == (200, 1)


def test_an_unknown_engine_is_told_the_known(gateway: Inside) -> None:
    """A wrong name changes nothing and is a 404."""
    status, body = gateway.admin("/admin/engines/c/drain", "POST")
    assert (status, json.loads(body)["error"]["message"]) == (404, "No engine 'c'; there are: a, b.")
