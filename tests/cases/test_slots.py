"""Section 1 of the field cases: a place lives exactly as long as its request."""

import random
import threading
import time
from collections.abc import Callable
from typing import Self

import pytest

from tests.caller import CHAT, Call, chat, finish, request_bytes
from tests.crowd import fill
from tests.harness import Gateway, Json, Start, engine, key_of, settings, tenant
from tests.meters import until
from tests.stub import Fault, Plan, Stub

COMPLETIONS = "/v1/completions"
Leave = Callable[[Call], None]
LEAVES = pytest.mark.parametrize("leave", [Call.close, Call.reset], ids=["closed", "reset"])
ENDLESS = Plan(texts=("x",) * 1000, interval_s=0.02)
HASTY: Json = {"connect_s": 0.5, "first_byte_s": 0.5, "idle_s": 0.5}
FAILURES = {
    "refused": (None, False, 503),
    "status_502": (Plan(status=502), False, 502),
    "stalled": (Plan(fault=Fault.STALL), False, 504),
    "reset_before_head": (Plan(fault=Fault.RESET), False, 502),
    "garbage": (Plan(fault=Fault.GARBAGE), False, 502),
    "reset_mid_body": (Plan(fault=Fault.CUT_RESET, fault_after=1, split_at=150), False, None),
    "closed_mid_body": (Plan(fault=Fault.CUT_CLOSE, fault_after=1, split_at=150), False, None),
    "stalled_mid_body": (Plan(fault=Fault.CUT_STALL, fault_after=1, split_at=150), False, None),
    "reset_mid_stream": (Plan(fault=Fault.CUT_RESET, fault_after=2), True, None),
    "closed_mid_stream": (Plan(fault=Fault.CUT_CLOSE, fault_after=2), True, None),
    "stalled_mid_stream": (Plan(fault=Fault.CUT_STALL, fault_after=2), True, None),
}


def alone(start: Start, stub: Stub) -> Gateway:
    """Start a gateway with a caller `solo` who may run one request at a time, on an engine with room for more."""
    return start(settings([engine(stub, 4)], tenants=[tenant("solo", max_running=1)]))


@LEAVES
def test_fc_01_a_cancelled_stream_frees_its_slot(stub: Stub, start: Start, leave: Leave) -> None:
    """In each of 50 rounds the caller's next request is admitted though its stream was to go on for 20 s."""
    gateway = alone(start, stub)
    for _ in range(50):
        stub.script.extend([ENDLESS, Plan()])
        stream = gateway.open(chat(stream=True), key=key_of("solo"))
        stream.read_events(3)
        leave(stream)
        time.sleep(0.02)
        answer = gateway.post(chat(), key=key_of("solo"))
        assert answer.status == 200
        assert answer.ended_at - answer.sent_at < 1
    gateway.assert_idle()
    assert (gateway.outcomes("completed"), gateway.outcomes("cancelled")) == (50, 50)


def runs(stub: Stub, text: str) -> None:
    """Wait until the engine has this very request: one that came before may still be on its way out."""
    until(lambda: text in {seen.text for seen in stub.running}, f"the engine has {text}")


def test_fc_01_the_limit_is_there(stub: Stub, start: Start) -> None:
    """While a caller's one place is taken its next request waits, and starts when the stream has ended."""
    gateway = alone(start, stub)
    stub.script.append(Plan(held=True))
    stream, second = (gateway.open(chat(stream=stream), key=key_of("solo")) for stream in (True, False))
    gateway.wait_for(waiting=1, running=1)
    assert not second.read(0.2)
    stub.release_all()
    assert [answer.status for answer in finish([stream, second])] == [200, 200]
    assert stub.requests[1].arrived_at >= stub.requests[0].finished_at


@LEAVES
@pytest.mark.parametrize("stage", ["sending", "waiting", "connecting", "no_head", "no_head_streamed", "whole_answer"])
def test_fc_01_leaving_at_any_stage_frees_the_slot(stub: Stub, start: Start, stage: str, leave: Leave) -> None:
    """A caller may leave while it sends or waits, before its engine has the request or answers, or after: the place is free at once."""
    gateway = alone(start, stub)
    stub.plan = lambda seen: Plan(held=seen.text == "gone")  # one that left early may never get here
    for _ in range(8):
        if stage == "sending":
            gone = [Call(gateway.port, request_bytes(chat("x" * 5000), key=key_of("solo"))[:-2000])]
        elif stage == "whole_answer":
            gone = [gateway.open(chat(), key=key_of("solo"))]
            assert gone[0].read()
        else:
            gone = [gateway.open(chat("gone", stream=stage == "no_head_streamed"), key=key_of("solo"))]
            gateway.wait_for(running=1)
            if stage != "connecting":
                runs(stub, "gone")
            if stage == "waiting":
                gone.insert(0, gateway.open(chat(), key=key_of("solo")))
                gateway.wait_for(waiting=1)
        for call in gone:
            leave(call)
        answer = gateway.post(chat(), key=key_of("solo"))
        assert answer.status == 200
        assert answer.ended_at - answer.sent_at < 1
    gateway.assert_idle()


@pytest.mark.parametrize(
    ("path", "several"),
    [(CHAT, {"n": 3}), (COMPLETIONS, {"best_of": 3}), (COMPLETIONS, {"prompt": ["a", "b", "c"]})],
    ids=["n", "best_of", "prompts"],
)
def test_each_answer_and_each_prompt_takes_a_slot(stub: Stub, start: Start, path: str, several: Json) -> None:
    """With two of four slots taken a request of three waits; with one taken it runs, and nothing beside it."""
    gateway = start(settings([engine(stub, 4)]))
    held = fill(gateway, stub, 2)
    body = {**(chat() if path == CHAT else {"model": "m", "prompt": "a"}), **several}
    large = gateway.open(body, path=path)
    gateway.wait_for(running=2, waiting=1)
    next(iter(stub.running)).release()
    until(lambda: gateway.metric("fairlane_engine_running_requests") == 4, "three more slots are taken")
    small = gateway.open(chat())
    gateway.wait_for(running=2, waiting=1)
    stub.plan = Plan()
    stub.release_all()
    assert [answer.status for answer in finish([*held, large, small])] == [200] * 4


def test_more_answers_than_slots_run_alone(stub: Stub, start: Start) -> None:
    """A request of 128 answers waits for the only other one on an engine with four slots, is served, and meanwhile nothing else is."""
    gateway = start(settings([engine(stub, 4)]))
    held = fill(gateway, stub, 1)
    large = gateway.open(chat("large", n=128))
    gateway.wait_for(running=1, waiting=1)
    stub.release_all()
    runs(stub, "large")
    small = gateway.open(chat("small"))
    gateway.wait_for(running=1, waiting=1)
    stub.plan = Plan()
    stub.release_all()
    assert [answer.status for answer in finish([*held, large, small])] == [200] * 3


@pytest.mark.parametrize("failure", FAILURES)
def test_fc_02_failed_upstream_attempts_free_their_slot(stub: Stub, start: Start, failure: str) -> None:
    """After two failures of any kind the caller's two places are both there again."""
    plan, stream, status = FAILURES[failure]
    gateway = start(settings([{**engine(stub, 2), **HASTY}], tenants=[tenant("duo", max_running=2)]))
    if plan is None:
        stub.refuse()
    else:
        stub.plan = plan
    broken = finish([gateway.open(chat(stream=stream), key=key_of("duo")) for _ in range(2)])
    if status is None:
        assert all(not answer.whole or answer.status in {502, 504} for answer in broken)
        assert all(b"[DONE]" not in answer.body for answer in broken)
    else:
        assert [answer.status for answer in broken] == [status] * 2
    gateway.assert_idle()
    assert gateway.outcomes("completed") == 0
    if plan is None:
        stub.accept()
    until(lambda: gateway.metric("fairlane_engine_up") == 1, "the engine is up")
    stub.plan = Plan(held=True)
    calls = [gateway.open(chat(), key=key_of("duo")) for _ in range(2)]
    until(lambda: len(stub.running) == 2, "both run at once")
    stub.release_all()
    assert [answer.status for answer in finish(calls)] == [200] * 2


def test_fc_03_a_queued_request_whose_client_left_is_never_dispatched(stub: Stub, start: Start) -> None:
    """The engine never sees it, the queue is shorter at once, and the one behind it starts as soon as the place is free."""
    gateway = start(settings([engine(stub, 1)]))
    stub.plan = lambda seen: Plan(held=seen.text == "A")
    calls = {}
    for name, ahead in (("A", {"running": 1}), ("B", {"waiting": 1}), ("C", {"waiting": 2})):
        calls[name] = gateway.open(chat(name))
        gateway.wait_for(**ahead)
    until(lambda: len(stub.running) == 1, "the engine has A")
    calls["B"].close()
    gateway.wait_for(waiting=1, timeout_s=0.5)
    assert (gateway.running(), gateway.outcomes("cancelled")) == (1, 1)
    assert [seen.text for seen in stub.requests] == ["A"]
    stub.release_all()
    assert [answer.status for answer in finish([calls["A"], calls["C"]])] == [200, 200]
    assert [seen.text for seen in stub.requests] == ["A", "C"]
    assert stub.requests[1].arrived_at - stub.requests[0].finished_at < 0.1
    assert (gateway.outcomes("completed"), gateway.outcomes("cancelled")) == (2, 1)


@LEAVES
@pytest.mark.parametrize("stage", ["mid_stream", "before_head", "plain"])
def test_fc_04_a_dropped_request_stops_the_upstream(stub: Stub, start: Start, stage: str, leave: Leave) -> None:
    """Within a second of the caller's leaving the engine sees its connection closed, though it had a minute of work left."""
    gateway = start(settings([engine(stub, 30)]))
    stub.plan = Plan(texts=("x",) * 3000, interval_s=0.02) if stage == "mid_stream" else Plan(held=True)
    calls = [gateway.open(chat(stream=stage != "plain")) for _ in range(20)]
    until(lambda: len(stub.running) == 20, "all run")
    if stage == "mid_stream":
        for call in calls:
            call.read_events(2)
    left_at = time.monotonic()
    for call in calls:
        leave(call)
    until(lambda: not stub.running, "the engine sees all connections closed", 1)
    assert all(seen.ended_at is None and (seen.peer_closed_at or 0) >= left_at for seen in stub.requests)
    gateway.assert_idle()
    assert gateway.outcomes("cancelled") == 20


def test_fc_05_cancelling_a_waiter_at_hand_over_loses_no_permit(stub: Stub, start: Start) -> None:
    """A place that is freed while its next owner leaves goes to the one behind, 500 times over, in order."""
    gateway = start(settings([engine(stub, 1)]))
    stub.plan = lambda seen: Plan(held=seen.text.endswith("A"))
    chance = random.Random(5)
    for number in range(500):
        calls = {}
        for name in "ABCD" if number % 5 == 0 else "AB":
            calls[name] = gateway.open(chat(f"{number:03} {name}"))
            if name == "A":
                runs(stub, f"{number:03} A")
            else:
                gateway.wait_for(waiting="ABCD".index(name))
        acts = [stub.release_all, calls.pop("B").close]
        chance.shuffle(acts)
        for act in acts:
            act()
            time.sleep(chance.choice([0, 0, chance.uniform(0, 0.002)]))
        assert [answer.status for answer in finish(list(calls.values()), 5)] == [200] * len(calls)
    stub.plan = Plan()
    answer = gateway.post(chat("last"))
    assert (answer.status, answer.ended_at - answer.sent_at < 0.5) == (200, True)
    gateway.assert_idle()
    survivors = [seen.text for seen in stub.requests if not seen.text.endswith("B")]
    assert survivors == sorted(survivors)


@pytest.mark.parametrize("churn", ["health", "connection"])
def test_fc_06_backend_churn_never_corrupts_in_flight_counts(stub: Stub, other_stub: Stub, start: Start, churn: str) -> None:
    """An engine that goes and comes back under its name still counts its three requests, once each, and then takes its limit."""
    other_stub.probe_status = 500
    gateway = start(settings([engine(stub, 3, "x"), engine(other_stub, 3, "y")]))
    until(lambda: _up(gateway, "x") and not _up(gateway, "y"), "only x is up")
    stub.plan = Plan(held=True)
    with _Watch(gateway, "x") as watch:
        first = [gateway.open(chat()) for _ in range(3)]
        until(lambda: len(stub.running) == 3, "three run on x")
        for _ in range(3):
            _fail(stub, churn)
            until(lambda: not _up(gateway, "x"), "x is down")
            assert gateway.metric("fairlane_engine_running_requests", engine="x") == 3
            _recover(stub, churn)
            until(lambda: _up(gateway, "x"), "x is back")
        late = [gateway.open(chat()) for _ in range(5)]
        gateway.wait_for(waiting=5)
        assert len(stub.running) == 3
        stub.release_all()
        assert [answer.status for answer in finish(first)] == [200] * 3
        until(lambda: len(stub.running) == 3, "x takes its limit")
        time.sleep(0.3)
        assert (len(stub.running), gateway.waiting(), len(other_stub.requests)) == (3, 2, 0)
        stub.plan = Plan()
        stub.release_all()
        assert [answer.status for answer in finish(late)] == [200] * 5
        gateway.assert_idle()
    assert (min(watch.values), max(watch.values), watch.values[-1]) == (0, 3, 0)


def test_fc_06_requests_that_died_with_their_engine_are_counted_off_once(stub: Stub, other_stub: Stub, start: Start) -> None:
    """Three requests that break with their engine free three places, no more and no less."""
    other_stub.probe_status = 500
    gateway = start(settings([engine(stub, 3, "x"), engine(other_stub, 3, "y")]))
    until(lambda: _up(gateway, "x") and not _up(gateway, "y"), "only x is up")
    stub.plan = Plan(held=True)
    with _Watch(gateway, "x") as watch:
        first = [gateway.open(chat()) for _ in range(3)]
        until(lambda: len(stub.running) == 3 and 3 in watch.values, "three run on x")
        stub.refuse()
        stub.reset_running()
        assert [answer.status for answer in finish(first)] == [502] * 3
        gateway.assert_idle()
        stub.accept()
        until(lambda: _up(gateway, "x"), "x is back")
        late = [gateway.open(chat()) for _ in range(5)]
        gateway.wait_for(waiting=2, running=3)
        until(lambda: len(stub.running) == 3, "three run on x again")
        stub.plan = Plan()
        stub.release_all()
        assert [answer.status for answer in finish(late)] == [200] * 5
        gateway.assert_idle()
    assert (min(watch.values), max(watch.values), watch.values[-1]) == (0, 3, 0)


def _up(gateway: Gateway, name: str) -> bool:
    return gateway.metric("fairlane_engine_up", engine=name) == 1


def _fail(stub: Stub, churn: str) -> None:
    if churn == "health":
        stub.probe_status = 500
    else:
        stub.refuse()


def _recover(stub: Stub, churn: str) -> None:
    if churn == "health":
        stub.probe_status = 200
    else:
        stub.accept()


class _Watch:
    """Reads an engine's count of running requests all the while, in a thread."""

    def __init__(self, gateway: Gateway, name: str) -> None:
        self.values: list[float] = []
        self._gateway, self._name = gateway, name
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.values.append(self._gateway.metric("fairlane_engine_running_requests", engine=self._name))

    def _read(self) -> None:
        while not self._done.wait(0.01):
            self.values.append(self._gateway.metric("fairlane_engine_running_requests", engine=self._name))
