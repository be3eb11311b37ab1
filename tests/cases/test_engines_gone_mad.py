"""An engine that answers what none should: its own request ends well, and nobody else is touched."""

import json
import time
from itertools import product

import pytest

from tests.caller import Call, chat, request_bytes
from tests.harness import Gateway, Json, Start, engine, key_of, settings, tenant
from tests.meters import until
from tests.stub import Plan, Stub
from tests.stub.plan import Usage, sse

METERED: Json = {"tokens_per_minute": {"rate": 60_000, "burst": 1_000_000}}
DEEP = "[" * 300 + "]" * 300
LONG = "y" * 70_000


def fault_lines(gateway: Gateway) -> list[str]:
    """The log lines of mistakes of ours."""
    return [line for line in gateway.stderr().splitlines() if '"internal_error"' in line or '"asyncio"' in line or "Traceback" in line]


def test_an_error_event_of_any_depth_is_answered(stub: Stub, start: Start) -> None:
    """What cannot be written again is told in our words; no client is left without an answer."""
    gateway = start(settings([engine(stub, 2)]))
    for depth in (100, 254, 255, 300, 1000):
        stub.plan = Plan(events=(sse('{"error": {"message": "bad", "code": 507, "x": ' + "[" * depth + "]" * depth + "}}"), sse("[DONE]")))
        answer = gateway.open(chat(stream=True)).finish(5)
        assert answer.status in {502, 507}
        assert answer.json()["error"]
    gateway.assert_idle()
    assert fault_lines(gateway) == []


NUMBERS = {
    "digits_5000": "9" * 5000,
    "digits_400": "9" * 400,
    "int64": str(2**62),
    "minus": "-5",
    "float": "1e999",
    "text": '"7"',
    "list": "[]",
}


@pytest.mark.parametrize("number", NUMBERS.values(), ids=NUMBERS)
def test_absurd_usage_is_no_usage(stub: Stub, start: Start, number: str) -> None:
    """The client has its answer, and limits, metrics and what is expected of later requests stay what they were."""
    gateway = start(settings([engine(stub, 2)], tenants=[tenant("metered", **METERED)]))
    usages = f'{{"prompt_tokens": 5, "completion_tokens": {number}}}', f'{{"prompt_tokens": {number}, "completion_tokens": 5}}'
    for done, (filler, key) in enumerate(product(("", LONG), (None, key_of("metered"))), start=1):
        for usage in usages * 3:
            stub.plan = Plan(body=f'{{"id": "1", "filler": "{filler}", "choices": [], "usage": {usage}}}'.encode())
            assert gateway.post(chat(max_tokens=None), key=key).status == 200
        stub.plan = Plan(usage=Usage(10, 5))
        for key_sent in (key_of("metered"), None):
            answer = gateway.post(chat(max_tokens=None), key=key_sent)
            assert answer.status == 200, answer.body
        assert int(gateway.post(chat(), key=key_of("metered")).header("x-ratelimit-remaining-tokens") or "") > 990_000
        assert gateway.admin("/metrics")[0] == 200
        assert gateway.outcomes("completed") == 9 * done
        gateway.assert_idle()
    assert fault_lines(gateway) == []


@pytest.mark.parametrize("status", [204, 205, 300, 301, 302, 304, 307])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_an_answer_that_is_none_is_502(stub: Stub, start: Start, status: int, *, stream: bool) -> None:
    """A redirect is not followed and not passed on, and an answer without one is a failure of the engine, free of charge."""
    gateway = start(settings([engine(stub, 2)], tenants=[tenant("metered", **METERED)]))
    length = () if status in {204, 304} else (("content-length", "0"),)
    stub.plan = Plan(status=status, headers=(*length, ("location", "http://10.0.0.1/secret")), body=b"")
    answer = gateway.post(chat(stream=stream), key=key_of("metered"))
    assert (answer.status, answer.code) == (502, "engine_failed")
    assert answer.header("location") is None
    assert gateway.outcomes("completed") == 0
    assert gateway.outcomes("failed") == 1
    assert answer.header("x-ratelimit-remaining-tokens") == "1000000"


def test_events_with_mixed_line_ends_pass_at_once(stub: Stub, start: Start) -> None:
    """The end of an event is two line ends of any kind, so a filtered stream is not held back."""
    gateway = start(settings([engine(stub, 2)]))
    frame = {"id": "1", "choices": [{"index": 0, "delta": {"content": "x"}}]}
    stub.plan = Plan(events=tuple(f"data: {json.dumps(frame)}\n\r\n".encode() for _ in range(3)), interval_s=0.5)
    call = gateway.open(chat(stream=True))
    until(lambda: call.read(0.1) and b'"x"' in call.raw, "the first event is there")
    assert len(stub.running) == 1
    assert call.finish().body.count(b'"x"') == 3


def test_fc_03_nothing_is_sent_for_a_client_that_left_behind_a_flood(stub: Stub, start: Start) -> None:
    """A client that sends more than is read while its request waits, and leaves, is noticed before the request is sent."""
    gateway = start(settings([engine(stub, 1)]))
    stub.plan = lambda seen: Plan(held=seen.text == "first")
    first = gateway.open(chat("first"))
    gateway.wait_for(running=1)
    flood = Call(gateway.port, request_bytes(chat("flood")).replace(b"connection: close\r\n", b""))
    gateway.wait_for(waiting=1)
    flood.send(b"x" * 200_000)
    time.sleep(0.2)
    flood.close()
    time.sleep(0.2)
    stub.release_all()
    assert first.finish().status == 200
    last = gateway.post(chat("last"))
    assert last.status == 200
    assert [seen.text for seen in stub.requests] == ["first", "last"]
    gateway.assert_idle()
    until(lambda: gateway.outcomes("cancelled") == 1, "it is counted as left")
