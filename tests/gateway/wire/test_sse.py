"""Counting event streams: the same figures for every legal framing and every split, with bounded memory."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.gateway.wire import sse
from fairlane.gateway.wire.sse import StreamMeter

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10, "prompt_tokens_details": {"cached_tokens": 4}}
TEXTS = ["", "你好，", "it's 😀", ' "usage":{"x":1} ', "[DONE]", 'data: [DONE]\n\n{"choices":[]}', "\r\n\n"]


def chunk(text: str, **more: object) -> str:
    """The data of one event with output."""
    return json.dumps({"id": "c", "choices": [{"index": 0, "delta": {"content": text}}], **more}, ensure_ascii=False)


CHUNKS = [chunk(text, usage=None) for text in TEXTS]
ALONE = json.dumps({"id": "c", "choices": [], "usage": USAGE})
REPLY = [*CHUNKS, ALONE, "[DONE]"]


def plain(events: list[str]) -> bytes:
    """The framing that engines use."""
    return "".join(f"data: {event}\n\n" for event in events).encode()


def meter(*pieces: bytes) -> StreamMeter:
    """A meter that has seen these pieces."""
    made = StreamMeter()
    for piece in pieces:
        made.feed(piece)
    return made


def split_json(event: str, end: str) -> str:
    """The same event over two data lines, cut where JSON allows white space."""
    return f"data: {event}{end}{end}" if event == "[DONE]" else f"data: {{{end}data: {event[1:]}{end}{end}"


FRAMINGS = {
    "lf": plain(REPLY),
    "crlf": plain(REPLY).replace(b"\n", b"\r\n"),
    "cr": plain(REPLY).replace(b"\n", b"\r"),
    "no space": plain(REPLY).replace(b"data: ", b"data:"),
    "bom": b"\xef\xbb\xbf" + plain(REPLY),
    "comments": b": ping\n\n" + plain(REPLY).replace(b"\n\ndata", b"\n\n: ping\n\n:\ndata"),
    "fields": plain(REPLY).replace(b"data:", b"event: message\nid: 7\nretry: 10\nunknown\ndata:"),
    "two lines": "".join(split_json(event, "\n") for event in REPLY).encode(),
    "two lines crlf": "".join(split_json(event, "\r\n") for event in REPLY).encode(),
    "empty lines": b"\n\n" + plain(REPLY).replace(b"\n\n", b"\n\n\n\n"),
    "mixed": plain(REPLY[:3]).replace(b"\n", b"\r") + plain(REPLY[3:5]).replace(b"\n", b"\r\n") + plain(REPLY[5:]),
}


def figures(made: StreamMeter) -> tuple[object, ...]:
    """All that a meter says."""
    return made.events, made.usage, made.begun, made.error, made.between_events


WANTED = (len(CHUNKS), USAGE, True, None, True)


@pytest.mark.parametrize("stream", FRAMINGS.values(), ids=FRAMINGS)
def test_fc_20_every_framing_gives_the_same_figures(stream: bytes) -> None:
    """In one piece, in lines, in whole events and in single bytes."""
    ends = [stream[i : i + 1] for i in range(len(stream))]
    events = [e + b"\n\n" for e in stream.split(b"\n\n")[:-1]] or [stream]
    for pieces in ([stream], stream.splitlines(keepends=True), events, ends):
        assert figures(meter(*pieces)) == WANTED


@pytest.mark.parametrize("stream", FRAMINGS.values(), ids=FRAMINGS)
def test_fc_19_no_split_changes_the_figures(stream: bytes) -> None:
    """Cut in two at every offset."""
    for i in range(1, len(stream)):
        assert figures(meter(stream[:i], stream[i:])) == WANTED, i


@given(st.randoms(use_true_random=False), st.sampled_from(sorted(FRAMINGS)))
@settings(max_examples=150, deadline=None)
def test_fc_19_many_random_splits_change_nothing(rng: random.Random, framing: str) -> None:
    """Cut into any number of pieces, so that fast and slow reading follow each other in every way."""
    stream = FRAMINGS[framing]
    cuts = sorted(rng.choices(range(len(stream) + 1), k=rng.randrange(60)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert figures(meter(*pieces)) == WANTED


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=10))
@settings(max_examples=300, deadline=None)
def test_noise_is_counted_the_same_however_it_is_cut(noise: bytes, cuts: list[int]) -> None:
    """Nothing raises, and no cut changes a figure, whatever an engine sends."""
    noise = noise.replace(b"\x01", b"\n").replace(b"\x02", b"data:").replace(b"\x03", b'{"usage":{}}')
    places = sorted(min(cut, len(noise)) for cut in cuts)
    pieces = [noise[a:b] for a, b in zip([0, *places], [*places, len(noise)], strict=True)]
    assert figures(meter(*pieces)) == figures(meter(noise))


def test_usage_alone_is_no_output() -> None:
    """A chunk that carries usage and choices counts, one with usage alone does not; the last usage object is kept."""
    both = chunk("x", usage={"completion_tokens": 1})
    for pieces in ([plain([both, both, ALONE])], [plain([both]), plain([both]), plain([ALONE])]):
        made = meter(plain(["{}"]), *pieces)
        assert (made.events, made.usage) == (3, USAGE)
    made = meter(plain(["{}", ALONE, both]))
    assert (made.events, made.usage) == (2, {"completion_tokens": 1})


def test_fc_16_null_is_no_usage() -> None:
    """Engines may send `usage: null` with every chunk."""
    assert meter(plain([chunk("a", usage=None)] * 3)).usage is None
    assert meter(plain(["{}"]), plain([chunk("a", usage=None)] * 3)).usage is None


def test_spaces_inside_the_json_do_not_matter() -> None:
    """Some engines write JSON with spaces, some without."""
    dense = json.dumps({"choices": [], "usage": USAGE}, separators=(",", ":"))
    wide = '{ "choices" : [ ] , "usage" : %s }' % json.dumps(USAGE)  # noqa: UP031 - braces
    for alone in (dense, wide):
        made = meter(plain(["{}"]), plain([alone]))
        assert (made.events, made.usage) == (1, USAGE)


def test_the_stream_begins_with_its_first_complete_data_event() -> None:
    """Comments, other fields and an unfinished event are not a beginning."""
    made = StreamMeter()
    for piece in (b": ping\n\n", b"event: x\n\n", b"data: {}", b"\n"):
        made.feed(piece)
        assert not made.begun
    assert not made.between_events
    made.feed(b"\n")
    assert made.begun
    assert made.between_events


@pytest.mark.parametrize(
    "stream",
    [
        b'data: {"error":{"message":"full","code":503}}\n\n',
        b'data: {"error": "full"}\n\ndata: [DONE]\n\n',
        b': ping\n\nevent: error\r\ndata: {"type":"error",\r\ndata: "error":{"type":"overloaded_error"}}\r\n\r\n',
        b'data: {"object":"error","message":"full","code":400}\n\n',
        b'error: {"code":503,"message":"loading"}\n\n',
    ],
)
def test_an_error_at_the_start_is_noticed(stream: bytes) -> None:
    """Every shape in which engines send one, whole and in single bytes; it is no output."""
    for pieces in ([stream], [stream[i : i + 1] for i in range(len(stream))]):
        made = meter(*pieces)
        assert made.begun
        assert made.error is not None
        assert made.events == 0


@pytest.mark.parametrize(
    "first", ['{"error":null,"choices":[{}]}', chunk('"error"'), chunk("x", note="error"), '{"error"', '["error"]', ""]
)
def test_what_is_no_error_is_none(first: str) -> None:
    """The word in a text, a null, broken JSON and other values are ordinary first events."""
    made = meter(plain([first]))
    assert (made.begun, made.error) == (True, None)


def test_a_later_error_is_passed_like_any_event() -> None:
    """Only the first event decides whether a stream has begun well."""
    assert meter(plain([chunk("a"), '{"error":{"message":"late"}}'])).error is None


def test_other_apis_keep_usage_elsewhere() -> None:
    """Inside the response or the message of an event it is found too."""
    assert meter(plain(["{}", json.dumps({"type": "response.completed", "response": {"usage": USAGE}})])).usage == USAGE
    assert sse.find_usage({"message": {"usage": USAGE}}) == USAGE
    assert sse.find_usage([USAGE]) is None
    assert sse.find_usage({"usage": 7, "response": 7}) is None


def test_broken_usage_is_none() -> None:
    """What looks like a usage object and is no JSON does not raise."""
    assert meter(b'data: {"usage": {\n\n').usage is None
    assert meter(plain(["{}"]), b'data: {"usage": {\n\n').usage is None


@pytest.mark.parametrize("stream", [b"x" * 65536, b"data: " + b"x" * 65530, b"data: x\n" * 8192, b"data:\n" * 8192, b": " + b"x" * 65534])
def test_fc_24_an_endless_line_or_event_is_bounded(stream: bytes) -> None:
    """Memory stays flat; what follows is counted again."""
    made = meter(plain([chunk("a")]))
    for _ in range(64):
        made.feed(stream)
    kept = len(made._rest) + sum(map(len, made._data))
    assert kept <= 2 * sse.LINE_BYTES
    assert len(made._data) <= sse.LINE_BYTES // 4
    made.feed(b"\n\n" + plain([chunk("b"), ALONE]))
    assert made.events in {2, 3}
    assert made.usage == USAGE


@pytest.mark.source
def test_the_common_piece_is_not_read_line_by_line() -> None:
    """A piece of whole single-line events is counted without being taken apart."""

    class Counting(StreamMeter):
        slow = 0

        def _feed_lines(self, data: bytes) -> None:
            Counting.slow += 1
            super()._feed_lines(data)

    made = Counting()
    for event in REPLY:
        made.feed(plain([event]))
    made.feed(plain(CHUNKS))
    assert Counting.slow == 1
    assert made.events == 2 * len(CHUNKS)
