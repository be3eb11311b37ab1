"""Taking the usage out of a stream for clients that did not ask for it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.gateway.wire.sse import UsageFilter

TEXT = [
    b'data: {"choices":[{"delta":{"content":"\xe6\x9d\xb1"}}],"usage":null}',
    b": a comment",
    b'event: x\ndata: {"choices":[{"delta":{"content":"\\"usage\\": {"}}]}',
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}',
]
USAGE = b'data: {"id":"c","choices": [],"usage": {"prompt_tokens": 3}}'
DONE = b"data: [DONE]"


def shown(stream: bytes, cuts: list[int]) -> bytes:
    """What is left of a stream that arrives in pieces."""
    places = sorted({0, *(cut % (len(stream) + 1) for cut in cuts), len(stream)})
    one = UsageFilter()
    return b"".join(one.feed(stream[a:b]) for a, b in pairwise(places)) + one.rest()


@given(cuts=st.lists(st.integers(0, 10_000), max_size=20), end=st.sampled_from([b"\n", b"\r\n"]), last=st.booleans())
def test_exactly_the_usage_event_is_taken_out_wherever_the_stream_is_cut(cuts: list[int], end: bytes, last: bool) -> None:
    """Every other byte stays, comments and quoted text included, with either line ending."""
    events = [*TEXT, USAGE, DONE] if last else [*TEXT, DONE, USAGE]
    whole = b"".join(event.replace(b"\n", end) + end + end for event in events)
    wanted = b"".join(event.replace(b"\n", end) + end + end for event in events if event is not USAGE)
    assert shown(whole, cuts) == wanted


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_whole_events_pass_at_once(end: bytes) -> None:
    """Nothing waits that need not, and a piece without usage is the very same piece, so that its framing can be kept."""
    one = UsageFilter()
    for event in [*TEXT, end.join(TEXT)]:
        piece = event + end
        assert one.feed(piece) is piece


@pytest.mark.parametrize("size", [100, 300_000])
def test_an_endless_event_is_not_kept_for_ever(size: int) -> None:
    """What cannot be a usage any more passes, so memory stays bounded."""
    one = UsageFilter()
    out = b"".join(one.feed(b"x" * 1000) for _ in range(size // 1000 + 1))
    assert len(one._pending) <= 257 * 1024
    assert out + one.rest() == b"x" * 1000 * (size // 1000 + 1)
