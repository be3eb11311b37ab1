"""What every kind of engine has in common, and how each is told the order; for all kinds that settings can name."""

import json
import time

import pytest

from fairlane.plugins import ENGINE_ADAPTERS, engine_adapter
from tests.caller import chat, finish
from tests.harness import Json, Start, engine, key_of, priority_class, settings, tenant
from tests.meters import until
from tests.stub import Fault, Plan, Stub

KINDS = sorted(set(ENGINE_ADAPTERS) - {"embedded"})  # that one is a llama.cpp server which the gateway starts itself
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
CLASSES = [priority_class("high"), priority_class("mid"), priority_class("low")]


@EVERY_KIND
def test_fc_09_a_lasting_refusal_passes_through(stub: Stub, start: Start, kind: str) -> None:
    """Whatever an engine says twice arrives as it was sent; only its being full is worth a second attempt."""
    gateway = start(settings([engine(stub, 2, kind=kind)]))
    body = b'{ "error": {"message": "engine \xe5\xbf\x99", "type": "t", "param": null, "code": "engine_busy"} }'
    for status, after in ((429, "17"), (503, "Fri, 31 Dec 2066 23:59:59 GMT")):
        attempts = 2 if engine_adapter(kind).full_status == status else 1
        stub.plan = Plan(status=status, headers=(("Retry-After", after),), body=body)
        for count, stream in enumerate((False, True), start=1):
            answer = gateway.post(chat(stream=stream))
            assert (answer.status, answer.header("retry-after"), answer.body, answer.whole) == (status, after, body, True)
            assert gateway.metric("fairlane_engine_refusals_total", engine="e0", status=str(status)) == count * attempts
    assert len(stub.requests) == gateway.metric("fairlane_engine_refusals_total")
    assert gateway.metric("fairlane_shed_total") == gateway.metric("fairlane_engine_failures_total") == 0
    assert (gateway.outcomes("failed"), gateway.outcomes("completed")) == (4, 0)
    assert gateway.metric("fairlane_engine_up", engine="e0") == 1


@EVERY_KIND
def test_fc_10_errors_keep_their_status(stub: Stub, start: Start, kind: str) -> None:
    """An error that is none of want of room is relayed at once, with its type and body."""
    gateway = start(settings([engine(stub, 2, kind=kind)]))
    body = b'{"error":{"message":"no","type":"t","param":"p","code":"c"}}'
    for status in (400, 401, 500):
        for stream in (False, True):
            stub.plan = Plan(status=status, headers=(("Content-Type", "application/json; charset=utf-8"),), body=body)
            answer = gateway.post(chat(stream=stream))
            assert (answer.status, answer.header("content-type"), answer.body) == (status, "application/json; charset=utf-8", body)
    assert len(stub.requests) == 6


def test_fc_10_of_an_engine_that_is_gone_it_is_503(stub: Stub, start: Start) -> None:
    """Whatever its kind was: nobody is there to be asked."""
    gateway = start(settings([engine(stub, 2, kind="vllm")]))
    stub.refuse()
    answer = gateway.post(chat(stream=True))
    assert answer.status in {502, 503}
    assert answer.code in {"engine_unreachable", "no_engine"}


@EVERY_KIND
def test_fc_26_connections_that_the_engine_closed_fail_nothing(stub: Stub, start: Start, kind: str) -> None:
    """An engine that closes what is idle between requests runs each of them exactly once."""
    gateway = start(settings([engine(stub, 2, kind=kind)]))
    for number in range(10):
        assert gateway.post(chat(str(number))).status == 200
        stub.refuse()
        stub.accept()
    assert [seen.text for seen in stub.requests] == [str(number) for number in range(10)]


@EVERY_KIND
def test_fc_27_a_long_silence_is_legal_up_to_its_limit(stub: Stub, start: Start, kind: str) -> None:
    """An engine that says nothing over many probes is waited for; past the limit it is 504, and the place is free."""
    gateway = start(settings([engine(stub, 2, kind=kind, first_byte_s=2)]))
    stub.plan = Plan(held=True)
    calls = [gateway.open(chat(stream=stream)) for stream in (False, True)]
    until(lambda: len(stub.running) == 2, "they run")
    probed = len(stub.probes)
    until(lambda: len(stub.probes) >= probed + 4, "it was probed many times")
    stub.release_all()
    assert [answer.status for answer in finish(calls)] == [200, 200]
    stub.plan = Plan(fault=Fault.STALL)
    answers = finish([gateway.open(chat(stream=stream)) for stream in (False, True)])
    assert [(answer.status, answer.code) for answer in answers] == [(504, "engine_timeout")] * 2
    until(lambda: not stub.running, "the engine sees its connections closed", 1)
    stub.plan = Plan()
    assert gateway.post(chat()).status == 200


@EVERY_KIND
def test_fc_06_an_engine_that_goes_and_comes_back_keeps_its_count(stub: Stub, start: Start, kind: str) -> None:
    """Requests that run through an engine's failing probes are counted off once, and then it takes exactly its limit."""
    gateway = start(settings([engine(stub, 3, kind=kind)]))
    stub.plan = Plan(held=True)
    first = [gateway.open(chat()) for _ in range(3)]
    until(lambda: len(stub.running) == 3, "three run")
    stub.probe_status = 500
    until(lambda: gateway.metric("fairlane_engine_up", engine="e0") == 0, "it is down")
    assert gateway.metric("fairlane_engine_running_requests", engine="e0") == 3
    stub.probe_status = 200
    until(lambda: gateway.metric("fairlane_engine_up", engine="e0") == 1, "it is back")
    late = [gateway.open(chat()) for _ in range(5)]
    gateway.wait_for(waiting=5, running=3)
    stub.release_all()
    assert [answer.status for answer in finish(first)] == [200] * 3
    gateway.wait_for(waiting=2, running=3)
    until(lambda: len(stub.running) == 3, "it has its limit")
    stub.plan = Plan()
    stub.release_all()
    assert [answer.status for answer in finish(late)] == [200] * 5


@EVERY_KIND
def test_fc_33_each_engine_is_told_the_order_in_its_own_way(stub: Stub, start: Start, kind: str) -> None:
    """The more urgent of two requests has the lower number on vLLM and the higher on SGLang, 5 s for each class between."""
    gateway = start(
        settings([engine(stub, 2, kind=kind)], classes=CLASSES, tenants=[tenant("a", **{"class": "low", "best_class": "high"})])
    )
    before = time.time_ns() // 1000
    for name in ("low", "high"):
        answer = gateway.post(chat(name, priority=7), key=key_of("a"), headers=[("X-Fairlane-Class", name)])
        assert answer.status == 200
    after = time.time_ns() // 1000
    low, high = (seen.json().get("priority", 0) for seen in stub.requests)
    sign = engine_adapter(kind).priority_sign
    if not sign:
        assert not any("priority" in seen.json() for seen in stub.requests)
        return
    assert {"vllm": 1, "sglang": -1}[kind] == sign
    assert before <= sign * high <= after
    assert before <= sign * low - 10_000_000 <= after
    assert abs(low) < 1 << 53


@EVERY_KIND
def test_fc_33_fc_34_no_client_writes_what_engines_order_and_address_by(stub: Stub, start: Start, kind: str) -> None:
    """Priorities, ids of requests and our arguments for a plugged-in scheduler are dropped, as fields and as headers."""
    gateway = start(settings([engine(stub, 2, kind=kind)]))
    headers = [("X-Vllm-Priority", "-9"), ("x-override-priority", "9"), ("x-override-rid", "r"), ("X-Priority", "high")]
    ours = {"fairlane_class": 0, "fairlane_tenant": "other"}
    body = chat(rid="r", request_id="r", vllm_xargs={**ours, "theirs": [1, 2.5]}, priority=-1000)
    assert gateway.post(body, headers=headers).status == 200
    (seen,) = stub.requests
    assert seen.json().keys().isdisjoint({"rid", "request_id"})
    assert seen.json()["vllm_xargs"] == {"theirs": [1, 2.5]}
    assert seen.json().get("priority") != -1000
    assert {name for name, _ in seen.headers}.isdisjoint(name.lower() for name, _ in headers)


def test_fc_42_arguments_that_are_no_object_are_refused(stub: Stub, start: Start) -> None:
    """They could not be put together with ours, and no engine takes them."""
    gateway = start(settings([engine(stub, 2)]))
    for xargs in (7, "x", [1]):
        answer = gateway.post(chat(vllm_xargs=xargs))
        assert (answer.status, answer.json()["error"]["param"]) == (400, "vllm_xargs")
    assert stub.requests == []


def test_a_plugged_in_scheduler_is_told_what_the_gateway_knows(stub: Stub, start: Start) -> None:
    """Class, tenant, cost, key and predicted output stand beside the client's own arguments, on routes that generate."""
    plugged: Json = engine(stub, 2, kind="vllm", scheduler_plugin=True, priority_step_s=1)
    gateway = start(settings([plugged], classes=CLASSES, tenants=[tenant("a", **{"class": "mid"})]))
    before = time.time_ns() // 1000
    body = chat(stream=True, vllm_xargs={"theirs": "x", "fairlane_tenant": "b"})
    assert gateway.post(body, key=key_of("a")).status == 200
    assert gateway.post(chat(vllm_xargs=None), key=key_of("a")).status == 200
    assert gateway.post({"model": "m", "input": "text"}, path="/v1/embeddings", key=key_of("a")).status == 200
    first, second, third = (seen.json() for seen in stub.requests)
    xargs = first["vllm_xargs"]
    assert xargs.keys() == {"theirs", "fairlane_class", "fairlane_tenant", "fairlane_cost", "fairlane_key", "fairlane_output"}
    assert (xargs["theirs"], xargs["fairlane_class"], xargs["fairlane_tenant"], xargs["fairlane_output"]) == ("x", 1, "a", 8)
    assert xargs["fairlane_cost"] >= 32
    assert isinstance(xargs["fairlane_key"], float)
    assert "theirs" not in second["vllm_xargs"]
    assert "vllm_xargs" not in third
    assert third["priority"] > second["priority"] > first["priority"] > before + 1_000_000
    assert json.loads(stub.requests[0].body)["stream_options"] == {"include_usage": True}
