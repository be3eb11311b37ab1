"""The stub is what the field cases lean on, so each thing that it promises is checked without a gateway."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from tests.caller import Call, chat, finish, request_bytes
from tests.meters import until
from tests.stub import Fault, Plan, Stub, Usage


@pytest.fixture
def stub() -> Iterator[Stub]:
    """Give a running stub."""
    with Stub() as upstream:
        yield upstream


def call(stub: Stub, **fields: object) -> Call:
    """Send a chat completion straight to the stub."""
    return Call(stub.port, request_bytes(chat(**fields), headers=[("X-Mark", "yes")]))  # type: ignore[arg-type]


def test_a_request_is_recorded_whole(stub: Stub) -> None:
    """Headers, body, time and end of a request are kept."""
    before = time.monotonic()
    answer = call(stub, text="你好").finish()
    [seen] = stub.requests
    assert (answer.status, answer.whole) == (200, True)
    assert answer.json()["choices"][0]["message"]["content"] == "Hello, world"
    assert answer.json()["usage"]["completion_tokens"] == 3
    assert (seen.method, seen.path, seen.text, seen.header("x-mark")) == ("POST", "/v1/chat/completions", "你好", "yes")
    assert before <= seen.arrived_at <= seen.finished_at <= time.monotonic()
    assert not seen.running


def test_a_stream_has_its_events_in_time(stub: Stub) -> None:
    """Events leave at their interval and end with usage where asked for and [DONE]."""
    stub.plan = Plan(interval_s=0.05, usage=Usage(7, 2))
    answer = call(stub, stream=True, stream_options={"include_usage": True}).finish()
    assert answer.header("content-type") == "text/event-stream; charset=utf-8"
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert b'"completion_tokens":2' in answer.body
    assert answer.ended_at - answer.first_byte_at >= 0.2
    assert len(stub.requests[0].sent_at) == 6


def test_usage_is_only_for_those_who_ask(stub: Stub) -> None:
    """A stream without the option has no usage."""
    assert b"usage" not in call(stub, stream=True).finish().body


@pytest.mark.parametrize("shape", [{"segment": 1}, {"segment": 7}, {"split_at": 1}, {"split_at": 300}])
def test_an_answer_cut_into_parts_is_the_same(stub: Stub, shape: dict[str, int]) -> None:
    """Cutting the bytes changes no byte."""
    plain = Plan(texts=("日本", "語🙂"))
    stub.plan = plain
    expected = call(stub, stream=True).finish().body
    stub.plan = Plan(texts=plain.texts, segment=shape.get("segment"), split_at=shape.get("split_at"), pause_s=0.0001)
    assert call(stub, stream=True).finish().body == expected
    assert len(stub.requests[1].sent_at) > 1


def test_a_held_request_waits_for_its_release(stub: Stub) -> None:
    """Nothing is sent before the release, and each request has its own."""
    stub.plan = Plan(held=True)
    calls = [call(stub) for _ in range(3)]
    until(lambda: len(stub.running) == 3, "three run")
    assert not calls[0].read(0.05)
    stub.requests[1].release()
    assert calls[1].finish().status == 200
    assert [seen.running for seen in stub.requests] == [True, False, True]
    stub.release_all()
    assert [answer.status for answer in finish([calls[0], calls[2]])] == [200, 200]


@pytest.mark.parametrize("leave", [Call.close, Call.reset])
def test_it_notices_when_its_peer_leaves(stub: Stub, leave: object) -> None:
    """A closed and a reset connection are both seen, at once."""
    stub.plan = Plan(held=True)
    gone = call(stub)
    until(lambda: len(stub.running) == 1, "it runs")
    left_at = time.monotonic()
    assert callable(leave)
    leave(gone)
    until(lambda: not stub.running, "it ends")
    closed_at = stub.requests[0].peer_closed_at
    assert closed_at is not None
    assert 0 <= closed_at - left_at < 0.5
    until(lambda: stub.connections == 0, "no connection is left")


def test_it_resets_before_the_head(stub: Stub) -> None:
    """A reset gives the peer no byte."""
    stub.plan = Plan(fault=Fault.RESET)
    broken = call(stub)
    assert broken.read()
    assert (broken.ended_at is not None, bytes(broken.raw)) == (True, b"")


@pytest.mark.parametrize("fault", [Fault.CUT_RESET, Fault.CUT_CLOSE])
@pytest.mark.parametrize("stream", [True, False])
def test_a_cut_answer_is_seen_as_cut(stub: Stub, fault: Fault, *, stream: bool) -> None:
    """What was sent before the cut arrives, and the transfer is broken."""
    stub.plan = Plan(fault=fault, fault_after=2, interval_s=0.02) if stream else Plan(fault=fault, fault_after=1, split_at=200)
    answer = call(stub, stream=stream).finish()
    assert (answer.status, answer.whole) == (200, False)


def test_garbage_is_not_http(stub: Stub) -> None:
    """The bytes sent are not HTTP."""
    stub.plan = Plan(fault=Fault.GARBAGE)
    broken = call(stub)
    until(lambda: broken.read() and broken.ended_at is not None, "the end")
    assert broken.raw
    assert not broken.raw.startswith(b"HTTP")


@pytest.mark.parametrize("plan", [Plan(fault=Fault.STALL), Plan(fault=Fault.CUT_STALL, fault_after=0)])
def test_a_stalled_request_stays_silent(stub: Stub, plan: Plan) -> None:
    """A stalled request gets nothing and stays counted."""
    stub.plan = plan
    stalled = call(stub)
    assert not stalled.read(0.1)
    assert len(stub.running) == 1
    stalled.close()


def test_it_refuses_and_accepts_on_the_same_port(stub: Stub) -> None:
    """A stub that refuses is not there; afterwards it is back under its address."""
    port = stub.port
    stub.refuse()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)
    stub.accept()
    assert stub.port == port
    assert call(stub).finish().status == 200


def test_running_requests_survive_a_refusal(stub: Stub) -> None:
    """Refusing new connections does not touch those that carry a request; `reset_running` does."""
    stub.plan = Plan(held=True)
    kept, cut = call(stub), call(stub)
    until(lambda: len(stub.running) == 2, "both run")
    stub.refuse()
    stub.requests[0].release()
    assert kept.finish().status == 200
    stub.reset_running()
    until(lambda: cut.read() and cut.ended_at is not None, "the other is reset")


def test_probes_are_answered_and_kept_apart(stub: Stub) -> None:
    """The pages that gateways probe show a healthy engine, or the status that the test sets."""
    pages = ["/v1/models", "/health", "/props"]
    answers = [Call(stub.port, request_bytes(b"", path=page, method="GET")).finish() for page in pages]
    assert [answer.status for answer in answers] == [200, 200, 200]
    assert answers[0].json()["data"][0]["id"] == "m"
    assert answers[2].json()["total_slots"] == 4
    stub.probe_status = 503
    assert Call(stub.port, request_bytes(b"", path="/health", method="GET")).finish().status == 503
    assert (len(stub.probes), stub.requests) == (4, [])


def test_scripted_plans_come_first(stub: Stub) -> None:
    """The plans of the script are used in order, then the standing one, which may be a function of the request."""
    stub.script.extend([Plan(status=429, headers=(("Retry-After", "17"),)), Plan(status=503, body=b"busy")])
    stub.plan = lambda seen: Plan(texts=(f"echo {seen.text}",))
    first, second, third = (call(stub, text="x").finish() for _ in range(3))
    assert (first.status, first.header("retry-after"), first.code) == (429, "17", "stub")
    assert (second.status, second.body) == (503, b"busy")
    assert third.json()["choices"][0]["message"]["content"] == "echo x"


@pytest.mark.parametrize("length", ["transfer-encoding: chunked", "content-length: 2\r\ncontent-length: 2", "x: y"])
def test_unclear_framing_is_a_fault_of_the_peer(stub: Stub, length: str) -> None:
    """A gateway that sends a request without one clear length is found out."""
    Call(stub.port, f"POST /v1/completions HTTP/1.1\r\nhost: x\r\n{length}\r\n\r\n".encode()).close()
    until(lambda: len(stub.faults) > 0, "the fault is noted")


def test_a_second_request_before_the_first_answer_is_a_fault(stub: Stub) -> None:
    """Nothing may be sent on a connection that carries a request."""
    stub.plan = Plan(held=True)
    pipelined = call(stub)
    until(lambda: len(stub.running) == 1, "it runs")
    pipelined.send(b"POST /v1/completions HTTP/1.1\r\n")
    until(lambda: len(stub.faults) > 0, "the fault is noted")
    pipelined.close()


@pytest.mark.parametrize("rounds", range(5))
def test_a_connection_that_comes_while_it_stops_listening_is_closed(stub: Stub, rounds: int) -> None:
    """However far the connection has come, its client sees the end of it, and no socket is left open."""

    async def stop_after(client: socket.socket) -> None:
        client.connect((stub.host, stub.port))
        for _ in range(rounds):
            await asyncio.sleep(0)
        await stub._refuse()

    with socket.socket() as client, contextlib.suppress(ConnectionResetError):
        client.settimeout(5)
        stub._run(stop_after(client))
        assert client.recv(1) == b""
