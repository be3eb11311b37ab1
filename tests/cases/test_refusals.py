"""Section 2 of the field cases: what a refusal says, whose refusal it is, and that it costs nothing."""

import time

import openai
import pytest

from tests.caller import Answer, Call, chat, finish
from tests.harness import Gateway, Json, Start, engine, key_of, priority_class, settings, tenant
from tests.meters import until
from tests.stub import Fault, Plan, Stub, Usage, sse

HTTP_DATE = "Fri, 31 Dec 2066 23:59:59 GMT"
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])


def assert_refused(answer: Answer, status: int, code: str) -> None:
    """Hold a refusal of the gateway's own to its form: one code, said everywhere, and a usable time to come back."""
    assert (answer.status, answer.code, answer.header("x-fairlane-reason")) == (status, code, code)
    assert (answer.header("content-type") or "").startswith("application/json")
    after, after_ms = answer.header("retry-after") or "", answer.header("retry-after-ms") or ""
    assert after.isdigit()
    assert int(after) >= 1
    assert 0 < float(after_ms) <= int(after) * 1000


def crowded(start: Start, stub: Stub) -> Gateway:
    """Start a gateway with a narrow class, a hasty class and callers with limits of their own, before one engine place."""
    classes = [priority_class(), priority_class("narrow", max_queued=1), priority_class("hasty", max_wait_s=0.3)]
    minute = {"rate": 6, "burst": 1}
    tenants = [
        tenant("counted", requests_per_minute=minute),
        tenant("queued", max_running=1, max_queued=1),
        tenant("narrow", **{"class": "narrow"}),
        tenant("other", **{"class": "narrow"}),
        tenant("hasty", **{"class": "hasty"}),
    ]
    return start(settings([engine(stub, 1)], classes=classes, tenants=tenants))


def test_fc_07_a_caller_over_its_own_limit_gets_429(stub: Stub, start: Start) -> None:
    """The limits of requests and of waiting requests are the caller's own, with a code each."""
    gateway = crowded(start, stub)
    assert gateway.post(chat(), key=key_of("counted")).status == 200
    assert_refused(gateway.post(chat(), key=key_of("counted")), 429, "rate_limit_requests")
    stub.plan = Plan(held=True)
    calls = [gateway.open(chat(), key=key_of("queued"))]
    gateway.wait_for(running=1)
    calls.append(gateway.open(chat(), key=key_of("queued")))
    gateway.wait_for(waiting=1)
    assert_refused(gateway.post(chat(), key=key_of("queued")), 429, "tenant_queue_full")
    stub.plan = Plan()
    stub.release_all()
    assert [answer.status for answer in finish(calls)] == [200, 200]
    assert gateway.metric("fairlane_shed_total", reason="rate_limit_requests") == 1
    assert gateway.metric("fairlane_shed_total", reason="tenant_queue_full") == 1


def test_fc_07_a_full_queue_and_a_passed_wait_share_429(stub: Stub, start: Start) -> None:
    """Both mean that the service is busy; their codes tell them apart."""
    gateway = crowded(start, stub)
    stub.plan = Plan(held=True)
    running = gateway.open(chat())
    gateway.wait_for(running=1)
    hasty = gateway.open(chat(), key=key_of("hasty")).finish()
    assert_refused(hasty, 429, "wait_expired")
    assert 0.3 <= hasty.ended_at - hasty.sent_at < 0.7
    waiting = gateway.open(chat(), key=key_of("narrow"))
    gateway.wait_for(waiting=1)
    assert_refused(gateway.post(chat(), key=key_of("narrow")), 429, "queue_full")
    stub.plan = Plan()
    stub.release_all()
    assert [answer.status for answer in finish([running, waiting])] == [200, 200]
    assert len(stub.requests) == 2
    assert (gateway.outcomes("evicted"), gateway.outcomes("rejected")) == (1, 1)


def test_fc_07_a_wait_that_would_be_too_long_is_told_at_once(stub: Stub, start: Start) -> None:
    """Once the service rate is known, who could not be served in time is not left to wait for it."""
    gateway = start(settings([engine(stub, 1)], classes=[priority_class(max_wait_s=1.0)]))
    stub.plan = Plan(delay_s=0.01)
    assert {answer.status for answer in finish([gateway.open(chat()) for _ in range(50)])} == {200}
    answers = finish([gateway.open(chat()) for _ in range(300)])
    served = [answer for answer in answers if answer.status == 200]
    at_once = [answer for answer in answers if answer.status != 200 and answer.code == "wait_too_long"]
    late = len(answers) - len(served) - len(at_once)
    assert len(at_once) > 100
    assert late <= 0.2 * len(served), "the prediction lets in about as many as can be served"
    for answer in at_once:
        assert_refused(answer, 429, "wait_too_long")
        assert answer.ended_at - answer.sent_at < 0.5


def test_fc_07_one_caller_cannot_fill_a_class(stub: Stub, start: Start) -> None:
    """In a full class the newest entry of the caller who has most waiting gives way to another caller."""
    gateway = crowded(start, stub)
    stub.plan = Plan(held=True)
    running = gateway.open(chat())
    gateway.wait_for(running=1)
    displaced = gateway.open(chat(max_tokens=50), key=key_of("narrow"))
    gateway.wait_for(waiting=1)
    other = gateway.open(chat(), key=key_of("other"))
    assert_refused(displaced.finish(), 429, "displaced")
    stub.plan = Plan()
    stub.release_all()
    assert [answer.status for answer in finish([running, other])] == [200, 200]


@pytest.mark.parametrize("from_start", [True, False])
def test_fc_07_no_healthy_backend_is_503(stub: Stub, start: Start, *, from_start: bool) -> None:
    """Whether the engine was never there or has gone: 503 at once, with a code of its own."""
    if from_start:
        stub.refuse()
    gateway = start(settings([engine(stub, 1)]), ready=not from_start)
    stub.probe_status = 500
    until(lambda: gateway.metric("fairlane_engine_up") == 0, "the engine is down")
    assert_refused(gateway.post(chat()), 503, "no_engine")
    assert stub.requests == []
    if from_start:
        stub.accept()
    stub.probe_status = 200
    until(lambda: gateway.metric("fairlane_engine_up") == 1, "the engine is up")
    assert gateway.post(chat()).status == 200


def test_fc_07_the_official_client_understands_a_refusal(stub: Stub, start: Start) -> None:
    """The OpenAI library turns it into its own exception, with our code in it."""
    gateway = crowded(start, stub)
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key_of("counted"), max_retries=0) as client:
        assert client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}]).choices[0].message.content
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert caught.value.code == "rate_limit_requests"


@pytest.mark.parametrize("unit", ["retry-after", "retry-after-ms"])
def test_fc_08_retry_after_is_a_usable_time(stub: Stub, start: Start, unit: str) -> None:
    """Who waits exactly as long as told is let in, whenever in the window the refusal came."""
    gateway = start(settings([engine(stub, 4)], tenants=[tenant("counted", requests_per_minute={"rate": 60, "burst": 3})]))
    for pause_s in (0.0, 0.3, 0.75):
        time.sleep(pause_s)
        while (answer := gateway.post(chat(), key=key_of("counted"))).status == 200:
            pass
        assert_refused(answer, 429, "rate_limit_requests")
        assert 1 <= int(answer.header("retry-after") or "") <= 3
        wait_s = float(answer.header(unit) or "") / (1000 if unit.endswith("ms") else 1)
        time.sleep(max(0.0, answer.ended_at + wait_s - time.monotonic()))
        assert gateway.post(chat(), key=key_of("counted")).status == 200


def test_fc_08_a_token_limit_tells_its_time_too(stub: Stub, start: Start) -> None:
    """The time is that in which the missing tokens come back, and it is no shorter."""
    gateway = start(settings([engine(stub, 4)], tenants=[tenant("metered", tokens_per_minute={"rate": 4800, "burst": 300})]))
    stub.plan = Plan(usage=Usage(10, 240))
    assert gateway.post(chat(max_tokens=240), key=key_of("metered")).status == 200
    answer = gateway.post(chat(max_tokens=240), key=key_of("metered"))
    assert_refused(answer, 429, "rate_limit_tokens")
    assert 3 <= int(answer.header("retry-after") or "") <= 4  # 195 tokens at 80 a second, and at most half as much on top
    time.sleep(max(0.0, answer.ended_at + float(answer.header("retry-after") or "") - time.monotonic()))
    assert gateway.post(chat(max_tokens=240), key=key_of("metered")).status == 200


@STREAMED
@pytest.mark.parametrize(("status", "after"), [(429, "17"), (503, HTTP_DATE)])
def test_fc_09_upstream_refusals_pass_through(stub: Stub, start: Start, status: int, after: str, *, stream: bool) -> None:
    """Status, Retry-After and body arrive as the engine sent them, and count as the engine's refusal."""
    gateway = start(settings([engine(stub, 2)]))
    body = b'{ "error": {"message": "engine \xe5\xbf\x99", "type": "t", "param": null, "code": "engine_busy"} }'
    stub.plan = Plan(status=status, headers=(("Retry-After", after),), body=body)
    answer = gateway.post(chat(stream=stream))
    assert (answer.status, answer.header("retry-after"), answer.body, answer.whole) == (status, after, body, True)
    assert answer.header("x-fairlane-reason") is None
    assert len(stub.requests) == 1
    assert gateway.metric("fairlane_engine_refusals_total", engine="e0", status=str(status)) == 1
    assert gateway.metric("fairlane_shed_total") == 0
    assert gateway.outcomes("rejected") == gateway.outcomes("evicted") == gateway.outcomes("completed") == 0


@STREAMED
@pytest.mark.parametrize("status", [400, 401, 429, 500, 503])
def test_fc_10_upstream_errors_keep_their_status(stub: Stub, start: Start, status: int, *, stream: bool) -> None:
    """Status, content type and body of an error are the engine's, on streams as well."""
    gateway = start(settings([engine(stub, 2)]))
    body = b'{"error":{"message":"no","type":"t","param":"p","code":"c"}}'
    stub.plan = Plan(status=status, headers=(("Content-Type", "application/json; charset=utf-8"),), body=body)
    answer = gateway.post(chat(stream=stream))
    assert (answer.status, answer.header("content-type"), answer.body) == (status, "application/json; charset=utf-8", body)


@STREAMED
def test_fc_10_an_unreachable_upstream_is_502_or_503(stub: Stub, start: Start, *, stream: bool) -> None:
    """No 200 is sent to a streaming caller before the engine was reached."""
    gateway = start(settings([engine(stub, 2)]))
    stub.refuse()
    answer = gateway.post(chat(stream=stream))
    assert answer.status in {502, 503}
    assert answer.code in {"engine_unreachable", "no_engine"}


@STREAMED
def test_fc_10_a_silent_upstream_is_504(stub: Stub, start: Start, *, stream: bool) -> None:
    """Past the limit for the first byte the caller gets 504, and the engine's connection is closed."""
    gateway = start(settings([engine(stub, 2, first_byte_s=0.4)]))
    stub.plan = Plan(fault=Fault.STALL)
    answer = gateway.post(chat(stream=stream))
    assert (answer.status, answer.code) == (504, "engine_timeout")
    assert 0.4 <= answer.ended_at - answer.sent_at < 1
    until(lambda: not stub.running, "the engine sees its connection closed", 1)


@pytest.mark.parametrize("plan", [Plan(held=True), Plan(texts=("x",), early_head=True, interval_s=0.5)], ids=["no_head", "head"])
def test_fc_10_200_is_sent_only_after_the_first_event(stub: Stub, start: Start, plan: Plan) -> None:
    """A streaming caller sees nothing before the engine has sent its first event, whether or not it has sent its head."""
    gateway = start(settings([engine(stub, 2)]))
    stub.plan = plan
    call = gateway.open(chat(stream=True))
    until(lambda: len(stub.running) == 1, "it runs")
    assert not call.read(0.25)
    stub.release_all()
    answer = call.finish()
    assert (answer.status, answer.whole) == (200, True)
    assert answer.first_byte_at > stub.requests[0].sent_at[1 if plan.early_head else 0]


def test_fc_10_an_error_as_first_event_is_not_a_200(stub: Stub, start: Start) -> None:
    """An engine that says 200 and then only an error gets an error status put before it."""
    gateway = start(settings([engine(stub, 2)]))
    stub.plan = Plan(events=(sse({"error": {"message": "out of memory", "type": "t", "param": None, "code": 500}}), sse("[DONE]")))
    answer = gateway.post(chat(stream=True))
    assert answer.status >= 500
    assert b"out of memory" in answer.body
    assert gateway.outcomes("completed") == 0


METERED: Json = {"tokens_per_minute": {"rate": 1000, "burst": 1000}}


def left(answer: Answer) -> int:
    """Return what an answer says to be left of the caller's tokens."""
    return int(answer.header("x-ratelimit-remaining-tokens") or "")


def test_fc_11_refused_and_failed_requests_cost_nothing(stub: Stub, start: Start) -> None:
    """Twenty requests over the limit and five that the engine failed leave the caller's tokens as they were."""
    gateway = start(settings([engine(stub, 8)], tenants=[tenant("metered", **METERED)]))
    for _ in range(20):
        answer = gateway.post(chat(max_tokens=2000), key=key_of("metered"))
        assert (answer.status, answer.code, answer.header("retry-after")) == (429, "request_over_limit", None)
        assert answer.header("x-should-retry") == "false"
    stub.plan = Plan(usage=Usage(10, 90))
    first = gateway.post(chat(max_tokens=90), key=key_of("metered"))
    assert first.status == 200
    stub.plan = Plan(status=500)
    for _ in range(5):
        assert gateway.post(chat(max_tokens=140), key=key_of("metered")).status == 500
    stub.plan = Plan(usage=Usage(10, 90))
    last = gateway.post(chat(max_tokens=90), key=key_of("metered"))
    assert last.status == 200
    refilled = 1000 / 60 * (last.ended_at - first.sent_at)
    assert 780 <= left(last) <= 820 + refilled


@pytest.mark.parametrize("way", ["status_500", "reset", "garbage", "stalled", "refused", "left_waiting", "expired"])
def test_fc_11_each_reservation_is_returned_exactly_once(stub: Stub, start: Start, way: str) -> None:
    """With 600 of 1,000 tokens used, five failed requests of 150 leave 400: not 0 (kept) and not 1,000 (returned twice)."""
    tenants = [tenant("metered", max_running=5, **METERED)]
    classes = [priority_class(max_wait_s=0.5 if way == "expired" else 60)]
    hasty = engine(stub, 5, first_byte_s=5 if way == "expired" else 0.4)
    gateway = start(settings([hasty], classes=classes, tenants=tenants, anonymous={"class": "only"}))
    stub.plan = Plan(usage=Usage(10, 590))
    began_at = time.monotonic()
    assert gateway.post(chat(max_tokens=590), key=key_of("metered")).status == 200
    for _ in range(3 if way in {"left_waiting", "expired"} else 5):
        _fail_two(gateway, stub, way)
    stub.probe_status = 200
    until(lambda: gateway.metric("fairlane_engine_up") == 1, "the engine is up")
    stub.plan = Plan(usage=Usage(2, 8))
    last = gateway.post(chat(max_tokens=8), key=key_of("metered"))
    refilled = 1000 / 60 * (last.ended_at - began_at)
    assert 370 <= left(last) <= 400 + refilled


def _fail_two(gateway: Gateway, stub: Stub, way: str) -> None:
    """Let two requests of the metered caller end in one way, both having reserved 150 tokens."""
    faults = {"reset": Fault.RESET, "garbage": Fault.GARBAGE, "stalled": Fault.STALL}
    if way in {"left_waiting", "expired"}:
        stub.plan = Plan(held=True)
        blockers = [gateway.open(chat()) for _ in range(5)]
        until(lambda: len(stub.running) == 5, "the engine is full")
    elif way == "refused":
        blockers = []
        stub.refuse()
    else:
        blockers = []
        stub.plan = Plan(status=500) if way == "status_500" else Plan(fault=faults[way])
    calls: list[Call] = [gateway.open(chat(max_tokens=140), key=key_of("metered")) for _ in range(2)]
    if way == "left_waiting":
        gateway.wait_for(waiting=2)
        for call in calls:
            call.close()
        gateway.wait_for(waiting=0)
    else:
        assert {answer.status for answer in finish(calls)} <= {429, 500, 502, 503, 504}
    if way == "refused":
        stub.accept()
    stub.release_all()
    finish(blockers)
