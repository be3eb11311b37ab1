"""Section 4 of the field cases: what passes through a stream, byte by byte and in time."""

import statistics

import openai
import pytest

from tests.caller import CHAT, chat
from tests.harness import Gateway, Start, engine, settings
from tests.stub import Plan, Stub, Usage
from tests.stub.plan import pieces, stream_events

TEXTS = ("日本語", "のテスト", "🙂👩‍👩‍👧", "한국어", " é ", "")
ASKED = chat("你好", stream=True, stream_options={"include_usage": True})
PLAN = Plan(texts=TEXTS, usage=Usage(10, 7))
EXPECTED = b"".join(stream_events(PLAN, CHAT, ASKED))


def tokens(gateway: Gateway, direction: str) -> int:
    """Return the tokens that the gateway has seen used."""
    return int(gateway.metric("fairlane_tokens_total", direction=direction))


def test_fc_19_text_survives_one_byte_per_segment(stub: Stub, start: Start) -> None:
    """An answer that comes byte by byte, the head and the framing too, is the same answer with the same usage."""
    gateway = start(settings([engine(stub, 1)]))
    stub.plan = Plan(texts=TEXTS, usage=PLAN.usage, segment=1, pause_s=0.0002)
    answer = gateway.post(ASKED)
    assert (answer.status, answer.whole, answer.body) == (200, True, EXPECTED)
    assert (tokens(gateway, "in"), tokens(gateway, "out")) == (10, 7)


def test_fc_19_text_survives_one_byte_per_chunk(stub: Stub, start: Start) -> None:
    """An engine that puts each byte into an HTTP chunk of its own cuts characters and lines; nothing is lost."""
    gateway = start(settings([engine(stub, 1)]))
    stub.plan = Plan(events=tuple(bytes([byte]) for byte in EXPECTED))
    answer = gateway.post(ASKED)
    assert (answer.status, answer.whole, answer.body) == (200, True, EXPECTED)
    assert (tokens(gateway, "in"), tokens(gateway, "out")) == (10, 7)


def test_fc_19_text_survives_a_split_at_every_offset(stub: Stub, start: Start) -> None:
    """Wherever the answer is cut in two, the caller gets the same bytes and the gateway sees the same usage."""
    gateway = start(settings([engine(stub, 1)]))
    length = sum(map(len, pieces(PLAN, CHAT, {**ASKED, "stream": True})))
    for offset in range(1, length):
        stub.plan = Plan(texts=TEXTS, usage=PLAN.usage, split_at=offset, pause_s=0.001)
        answer = gateway.post(ASKED)
        assert (answer.status, answer.whole, answer.body) == (200, True, EXPECTED), f"split at {offset}"
    assert (tokens(gateway, "in"), tokens(gateway, "out")) == (10 * (length - 1), 7 * (length - 1))


def test_fc_19_the_official_client_reads_the_same_text(stub: Stub, start: Start) -> None:
    """Through the OpenAI library the text is whole although each byte came alone."""
    gateway = start(settings([engine(stub, 1)]))
    stub.plan = Plan(texts=TEXTS, usage=PLAN.usage, segment=1)
    with (
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client,
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "你好"}], stream=True) as stream,
    ):
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == "".join(TEXTS)


@pytest.mark.parametrize("early_head", [False, True], ids=["head_with_event", "head_alone"])
def test_fc_23_each_chunk_is_passed_on_at_once(stub: Stub, start: Start, *, early_head: bool) -> None:
    """Every event arrives within 50 ms of leaving the engine, the head with the first one, uncompressed and uncached."""
    gateway = start(settings([engine(stub, 1)]))
    events = tuple(b'data: {"n": %02d, "padding": "%b"}\n\n' % (number, b"x" * 30) for number in range(10))
    stub.plan = Plan(events=events, interval_s=0.2, early_head=early_head)
    call = gateway.open(chat(stream=True), headers=[("accept-encoding", "gzip, br")])
    answer = call.finish()
    assert answer.body == b"".join(events)
    assert answer.header("content-encoding") is None
    assert "no-cache" in (answer.header("cache-control") or "")
    assert answer.header("x-accel-buffering") == "no"
    left_at = stub.requests[0].sent_at[1 if early_head else 0 :]
    came_at = [next(at for at, count in call.arrivals if count >= call.raw.index(event) + len(event)) for event in events]
    delays = [came - left for came, left in zip(came_at, left_at, strict=True)]
    assert max(delays) < 0.05, delays
    assert statistics.median(delays) < 0.01
    assert bytes(call.raw[: call.arrivals[0][1]]).startswith(b"HTTP/1.1 200")


def test_fc_16_usage_is_shown_only_to_those_who_asked(stub: Stub, start: Start) -> None:
    """Without `include_usage` no usage and no chunk without choices arrives, `[DONE]` stays last, and the real figure is charged."""
    gateway = start(settings([engine(stub, 1)]))
    stub.plan = PLAN
    answer = gateway.post(chat("你好", stream=True))
    assert answer.whole
    assert b"usage" not in answer.body
    assert b'"choices":[]' not in answer.body.replace(b" ", b"")
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert answer.body == EXPECTED.replace(next(e for e in EXPECTED.split(b"\n\n") if b'"usage"' in e) + b"\n\n", b"")
    assert (tokens(gateway, "in"), tokens(gateway, "out")) == (10, 7)
    assert gateway.post(ASKED).body == EXPECTED
