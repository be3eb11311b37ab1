"""The yardstick of fairness is itself held to sums that can be done by hand."""

import asyncio
import json

import pytest

from tests.stub.cost import cost_of, shortfall, usage_of
from tests.stub.plan import Usage
from tests.stub.seen import Seen

LOOP = asyncio.new_event_loop()
LOOP.close()


def seen(text: str, max_tokens: int) -> Seen:
    """Make a request as the stub would have recorded it."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}
    return Seen(0, 1, "POST", "/v1/chat/completions", [], json.dumps(body).encode(), LOOP)


def test_cost_counts_output_four_times() -> None:
    """A prompt of 40 characters and 5 tokens of output cost 10 + 20."""
    request = seen("x" * 40, 5)
    assert usage_of(request) == Usage(10, 5)
    assert cost_of(request) == 30


@pytest.mark.parametrize(("order", "worst"), [("abab", 12), ("aabb", 24), ("bbaa", 24), ("abbbba", 48), ("aaaa", 0), ("babababa", 12)])
def test_shortfall_is_the_worst_run(order: str, worst: int) -> None:
    """At a share of one half and a cost of 24 each, every request of the other group puts ours 12 behind."""
    requests = [seen(name * 16, 5) for name in order]
    assert cost_of(requests[0]) == 24
    assert shortfall(requests, "a", 0.5) == worst
