"""How bodies are read."""

import json
import random
import statistics

import pytest

from fairlane.demo.asked import Asked, Served, read
from fairlane.errors import Reason, Refused

SERVED = Served("m", 1000)
HI: dict[str, object] = {"messages": [{"role": "user", "content": "x" * 9}]}
PARTS = [{"type": "text", "text": "x" * 8}, {"type": "image_url", "image_url": {"url": "data:"}}]

GOOD: dict[str, tuple[dict[str, object], Asked]] = {
    "least": (HI, Asked(3, 997, exact=False, stream=False, usage=False)),
    "capped": (HI | {"model": "m", "max_tokens": 5, "n": 1}, Asked(3, 5, exact=False, stream=False, usage=False)),
    "new name": (HI | {"max_tokens": 5, "max_completion_tokens": 4}, Asked(3, 4, exact=False, stream=False, usage=False)),
    "exact": (HI | {"max_tokens": 5, "ignore_eos": True}, Asked(3, 5, exact=True, stream=False, usage=False)),
    "exact without a bound": (HI | {"ignore_eos": True}, Asked(3, 997, exact=False, stream=False, usage=False)),
    "streamed": (
        HI | {"stream": True, "stream_options": {"include_usage": True}},
        Asked(3, 997, exact=False, stream=True, usage=True),
    ),
    "nulls": (HI | {"max_tokens": None, "stream": None, "stream_options": None}, Asked(3, 997, exact=False, stream=False, usage=False)),
    "parts": ({"messages": [{"content": PARTS}, {"content": None}]}, Asked(2, 998, exact=False, stream=False, usage=False)),
    "as much as fits": (HI | {"max_tokens": 997}, Asked(3, 997, exact=False, stream=False, usage=False)),
}
PROMPTS: dict[str, tuple[object, int]] = {"text": ("x" * 41, 11), "empty": ("", 1), "numbers": ([1, 2, 3], 3), "list": (["x" * 8], 2)}
BAD: dict[str, tuple[object, Reason, str | None]] = {
    "no object": ([], Reason.INVALID_REQUEST, None),
    "no messages": ({"model": "m"}, Reason.INVALID_REQUEST, "messages"),
    "empty messages": ({"messages": []}, Reason.INVALID_REQUEST, "messages"),
    "message of another type": ({"messages": ["hi"]}, Reason.INVALID_REQUEST, "messages"),
    "content of another type": ({"messages": [{"content": 5}]}, Reason.INVALID_REQUEST, "messages"),
    "another model": (HI | {"model": "x"}, Reason.MODEL_NOT_FOUND, "model"),
    "model of another type": (HI | {"model": ["m"]}, Reason.MODEL_NOT_FOUND, "model"),
    "two answers": (HI | {"n": 2}, Reason.INVALID_REQUEST, "n"),
    "no tokens": (HI | {"max_tokens": 0}, Reason.INVALID_REQUEST, "max_tokens"),
    "half a token": (HI | {"max_completion_tokens": 1.5}, Reason.INVALID_REQUEST, "max_completion_tokens"),
    "truth as a number": (HI | {"max_tokens": True}, Reason.INVALID_REQUEST, "max_tokens"),
    "stream as a number": (HI | {"stream": 1}, Reason.INVALID_REQUEST, "stream"),
    "options of another type": (HI | {"stream_options": [1]}, Reason.INVALID_REQUEST, "stream_options"),
    "answer too long": (HI | {"max_tokens": 998}, Reason.CONTEXT_LENGTH_EXCEEDED, None),
    "prompt too long": ({"messages": [{"content": "x" * 4000}]}, Reason.CONTEXT_LENGTH_EXCEEDED, None),
}


@pytest.mark.parametrize("case", GOOD)
def test_good_bodies(case: str) -> None:
    """A chat's prompt counts a token for 4 characters, and its answer is bounded by the caller and by the KV cache."""
    body, asked = GOOD[case]
    assert read(json.dumps(body).encode(), SERVED, chat=True) == asked


@pytest.mark.parametrize("case", PROMPTS)
def test_prompts_of_completions(case: str) -> None:
    """A text completion's prompt is a text or the numbers of its tokens."""
    prompt, tokens = PROMPTS[case]
    assert read(json.dumps({"prompt": prompt}).encode(), SERVED, chat=False).prompt_tokens == tokens


@pytest.mark.parametrize("case", BAD)
def test_bad_bodies(case: str) -> None:
    """Each mistake is refused by its reason and names its field."""
    body, reason, param = BAD[case]
    with pytest.raises(Refused) as caught:
        read(json.dumps(body).encode(), SERVED, chat=True)
    assert (caught.value.reason, caught.value.param) == (reason, param)


@pytest.mark.parametrize("prompt", [None, [], ["a", "b"], [[1, 2]], 5, [True]])
def test_bad_prompts(prompt: object) -> None:
    """Several prompts at once are refused, as is what is none."""
    with pytest.raises(Refused, match="prompt must be one text"):
        read(json.dumps({"prompt": prompt}).encode(), SERVED, chat=False)


def test_text_that_is_no_json() -> None:
    """A body that is not JSON is told so."""
    with pytest.raises(Refused, match="no valid JSON"):
        read(b"{", SERVED, chat=True)


def test_lengths_are_drawn_around_200_and_capped() -> None:
    """Drawn lengths have a median of about 200, are spread, never exceed their bound, and follow from the seed."""
    asked = Asked(1, 5000, exact=False, stream=False, usage=False)
    rng = random.Random(1)
    lengths = [asked.output_tokens(rng) for _ in range(2000)]
    assert 180 < statistics.median(lengths) < 220
    assert min(lengths) < 50
    assert max(lengths) > 1000
    rng = random.Random(1)
    assert lengths[:50] == [asked.output_tokens(rng) for _ in range(50)]
    short = Asked(1, 7, exact=False, stream=False, usage=False)
    assert {short.output_tokens(rng) for _ in range(500)} <= set(range(1, 8))
    assert {Asked(1, 7, exact=True, stream=False, usage=False).output_tokens(rng) for _ in range(50)} == {7}
