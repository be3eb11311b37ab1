"""An engine that is full: its refusal is backpressure, and the request that met it loses neither its place nor a token."""

import signal
from pathlib import Path

import pytest

from tests.caller import chat, finish
from tests.engines.record import PAGES
from tests.harness import Gateway, Start, engine, key_of, settings, tenant
from tests.meters import until
from tests.stub import Plan, Stub, sse

VLLM = Plan(status=503, body=(PAGES / "vllm-0.32.0-full.json").read_bytes())
VLLM_EVENT = (PAGES / "vllm-0.32.0-full-event.txt").read_bytes()
SGLANG = {"error": {"message": "The request queue is full.", "type": "SERVICE_UNAVAILABLE", "param": None, "code": 503}}
TGI = {"error": "Model is overloaded", "error_type": "overloaded"}
WAYS = {
    "vllm": (VLLM, False),
    "vllm-stream": (VLLM, True),
    "vllm-event": (Plan(events=(VLLM_EVENT,)), True),
    "vllm-event-after-its-head": (Plan(events=(VLLM_EVENT,), early_head=True, interval_s=0.05), True),
    "sglang": (Plan(status=503), False),
    "sglang-event": (Plan(events=(sse(SGLANG), sse("[DONE]"))), True),
    "tgi": (Plan(status=429), False),
    "tgi-event": (Plan(events=(sse(TGI),)), True),
}
EVERY_WAY = pytest.mark.parametrize("way", WAYS)
ANY_KIND = pytest.mark.parametrize("way", ["vllm", "sglang", "tgi"])


@EVERY_WAY
def test_fc_09_a_request_that_met_a_full_engine_is_served_later(stub: Stub, start: Start, way: str) -> None:
    """The client sees one good answer, its tokens are charged once, and the engine counts as well."""
    full, stream = WAYS[way]
    metered = tenant("metered", tokens_per_minute={"rate": 1, "burst": 1000})
    gateway = start(settings([engine(stub, 2, kind=way.partition("-")[0])], tenants=[metered]))
    stub.script.append(full)
    assert gateway.post(chat(stream=stream), key=key_of("metered")).status == 200
    assert len(stub.requests) == 2
    assert gateway.metric("fairlane_engine_refusals_total", engine="e0") == 1
    assert gateway.metric("fairlane_engine_failures_total") == gateway.outcomes("failed") == gateway.metric("fairlane_shed_total") == 0
    assert gateway.metric("fairlane_tenant_tokens_total", tenant="metered") == 13
    left = gateway.post(chat(), key=key_of("metered")).header("x-ratelimit-remaining-tokens")
    assert 1000 - 13 - 40 < int(left or "") < 1000 - 13


@EVERY_WAY
def test_fc_10_the_second_refusal_passes_through(stub: Stub, start: Start, way: str) -> None:
    """Who met a full engine twice is told so, with a status that is no 200."""
    full, stream = WAYS[way]
    kind = way.partition("-")[0]
    gateway = start(settings([engine(stub, 2, kind=kind)]))
    stub.plan = full
    answer = gateway.post(chat(stream=stream))
    assert answer.status == (429 if kind == "tgi" else 503)
    assert b"error" in answer.body
    assert len(stub.requests) == 2
    assert gateway.outcomes("failed") == 1
    assert gateway.metric("fairlane_engine_up", engine="e0") == 1


@EVERY_WAY
def test_other_kinds_pass_the_same_words_on(stub: Stub, start: Start, way: str) -> None:
    """Of a server that is not known to mean want of room by it, the first refusal is the client's."""
    full, stream = WAYS[way]
    gateway = start(settings([engine(stub, 2)]))
    stub.script.append(full)
    assert gateway.post(chat(stream=stream)).status == (429 if way.startswith("tgi") else 503)
    assert len(stub.requests) == 1


@ANY_KIND
def test_it_keeps_its_place_before_those_behind_it(stub: Stub, start: Start, way: str) -> None:
    """Neither those that waited nor those that come meanwhile get the engine's place first."""
    gateway = start(settings([engine(stub, 1, kind=way)]))
    stub.script.append(Plan(status=WAYS[way][0].status, held=True))
    calls = [gateway.open(chat("first"))]
    until(lambda: len(stub.running) == 1, "the first is sent")
    calls.append(gateway.open(chat("second")))
    gateway.wait_for(waiting=1)
    stub.release_all()
    assert [answer.status for answer in finish(calls)] == [200, 200]
    assert [seen.text for seen in stub.requests] == ["first", "first", "second"]


@ANY_KIND
def test_another_engine_takes_it_at_once(stub: Stub, other_stub: Stub, start: Start, way: str) -> None:
    """What one engine has no room for is no reason to wait where another has."""
    gateway = start(settings([engine(stub, 1, "x", kind=way), engine(other_stub, 2, "y", kind=way)]))
    until(lambda: gateway.metric("fairlane_engine_up") == 2, "both are up")
    stub.plan = WAYS[way][0]
    assert [gateway.post(chat()).status for _ in range(2)] == [200, 200]
    assert len(other_stub.requests) == 2


@ANY_KIND
def test_fc_03_a_client_that_leaves_meanwhile_is_not_sent_again(stub: Stub, start: Start, way: str) -> None:
    """It waits like any other, and what it was charged goes back."""
    gateway = start(settings([engine(stub, 1, kind=way)]))
    stub.script.append(Plan(status=WAYS[way][0].status, held=True))
    first = gateway.open(chat("first"))
    until(lambda: len(stub.running) == 1, "the first is sent")
    second = gateway.open(chat("second"))
    gateway.wait_for(waiting=1)
    stub.plan = Plan(held=True)
    stub.release_all()
    until(lambda: len(stub.requests) == 2 or gateway.waiting() == 2, "the first is back")
    first.close()
    until(lambda: gateway.outcomes("cancelled") == 1, "the client has left")
    stub.plan = Plan()
    until(lambda: stub.requests[-1].text == "second", "the second is sent")
    stub.release_all()
    assert second.finish().status == 200


@ANY_KIND
def test_fc_06_an_engine_that_is_lost_meanwhile_loses_nothing(stub: Stub, start: Start, way: str) -> None:
    """The request waits for the engine to come back, and is served then; all counts end at 0."""
    gateway = start(settings([engine(stub, 1, kind=way)]))
    stub.script.append(Plan(status=WAYS[way][0].status, held=True))
    call = gateway.open(chat())
    until(lambda: len(stub.running) == 1, "it is sent")
    stub.probe_status = 500
    until(lambda: gateway.metric("fairlane_engine_up", engine="e0") == 0, "it is down")
    stub.release_all()
    gateway.wait_for(waiting=1, running=0)
    stub.probe_status = 200
    assert call.finish().status == 200


@ANY_KIND
def test_fc_55_a_stop_serves_what_was_put_back(stub: Stub, tmp_path: Path, way: str) -> None:
    """While the gateway drains, a refused request is tried again like any that waits."""
    with Gateway(settings([engine(stub, 1, kind=way)]), tmp_path) as gateway:
        stub.script.append(Plan(status=WAYS[way][0].status, held=True))
        call = gateway.open(chat())
        until(lambda: len(stub.running) == 1, "it is sent")
        gateway.process.send_signal(signal.SIGTERM)
        until(lambda: gateway.admin("/readyz")[0] == 503, "it drains")
        stub.release_all()
        assert call.finish().status == 200
        assert gateway.process.wait(10) == 0
        assert len(stub.requests) == 2
