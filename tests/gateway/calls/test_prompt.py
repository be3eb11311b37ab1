"""Measures of prompts: every legal shape has one, text counts wherever it stands, and all else is bounded."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.gateway.calls import prompt
from fairlane.gateway.calls.body import CHAT, COMPLETIONS, EMBEDDINGS, Route, read, rewrite
from fairlane.predict.estimate import Estimator, PromptSize
from tests.gateway.calls.bodies import refusal, with_member

PRIORITY = frozenset({"priority"})


def size(*messages: object, **members: object) -> PromptSize:
    """The measure of messages without what each of them costs for its role and markers."""
    whole = read(CHAT, orjson.dumps({"model": "m", "messages": messages, **members})).prompt
    return PromptSize(whole.ascii - len(messages) * prompt.MESSAGE_CHARACTERS, whole.cjk, whole.other, whole.ids, whole.extra)


@pytest.mark.parametrize(
    ("value", "expected", "choices"),
    [
        ('"Hello"', PromptSize(5), 1),
        ('""', PromptSize(0), 1),
        ('["ab","中文",""]', PromptSize(2, 2), 3),
        ("[1,2,3]", PromptSize(0, ids=3), 1),
        ("[[1,2],[3]]", PromptSize(0, ids=3), 2),
    ],
)
@pytest.mark.parametrize(("route", "name"), [(COMPLETIONS, "prompt"), (EMBEDDINGS, "input")])
def test_prompts_of_every_form_are_measured(route: Route, name: str, value: str, expected: PromptSize, choices: int) -> None:
    """Texts count their characters, token ids are exact, and lists hold several prompts."""
    call = read(route, with_member(route, name, value))
    assert (call.prompt, call.choices) == (expected, choices)


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "a" * 20_000}}
LEGAL_SHAPES: list[tuple[str, object]] = [
    ("null content and tool_calls", {"role": "assistant", "content": None, "tool_calls": [CALL]}),
    ("tool_calls null", {"role": "assistant", "content": "x", "tool_calls": None}),
    ("empty parts", {"role": "user", "content": []}),
    ("unknown part", {"role": "user", "content": [{"type": "hologram", "payload": "x" * 10**6}]}),
    ("tool role", {"role": "tool", "tool_call_id": "c1", "content": "x"}),
    ("tool parts", {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "x"}]}),
    ("old function call", {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}),
    ("refusal", {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}),
    ("custom tool", {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}]}),
    ("no content", {"role": "assistant"}),
    ("text without text", {"role": "user", "content": [{"type": "text"}, {"type": "text", "text": None}, {}]}),
    ("odd parts", {"role": "user", "content": ["plain", 5, None, [1], {"type": ["x"]}]}),
    ("odd calls", {"role": "assistant", "tool_calls": [5, None, {"function": 7}, {"function": {"arguments": {"a": 1}}}]}),
    ("calls of another type", {"role": "assistant", "content": "x", "tool_calls": {"a": 1}, "function_call": 7}),
]


@pytest.mark.parametrize("message", [shape for _, shape in LEGAL_SHAPES], ids=[f"fc_17-{name}" for name, _ in LEGAL_SHAPES])
def test_every_shape_of_message_has_a_bounded_measure(message: object) -> None:
    """No shape is refused, and the estimate is positive and bounded."""
    call = read(CHAT, orjson.dumps({"model": "m", "messages": [message]}))
    guess = Estimator().estimate("t", "m", call.prompt, call.cap, call.choices)
    assert 1 <= guess.prompt_tokens < 10_000


def test_text_in_every_place_is_counted() -> None:
    """Text parts, parts of other types that carry text, tool arguments, definitions and schemas add their characters."""
    assert size({"role": "user", "content": "中文ab"}) == PromptSize(2, 2)
    assert size({"role": "user", "content": [{"type": "text", "text": "abc"}, {"type": "novel", "text": "中"}]}) == PromptSize(3, 1)
    assert size({"role": "assistant", "content": [{"type": "refusal", "refusal": "abcd"}]}) == PromptSize(4)
    assert size({"role": "assistant", "content": None, "tool_calls": [CALL]}) == PromptSize(20_000)
    assert size({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "abc"}}) == PromptSize(3)
    tools = [{"type": "function", "function": {"name": "weather", "description": "天气"}}]
    for name in ("tools", "functions", "response_format"):
        counted = size({"role": "user", "content": ""}, **{name: tools})
        assert counted == PromptSize.of(orjson.dumps(tools).decode())


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
shapes = texts | st.none() | st.lists(texts | st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=3)


@given(st.lists(st.tuples(shapes, st.booleans()), min_size=1, max_size=6))
def test_a_plain_message_counts_like_any_other(said: list[tuple[object, bool]]) -> None:
    """A role and a text alone are measured at once; with a member that counts nothing, or as parts, they come to the same."""
    plain = [{"role": "user", "content": content} for content, _ in said]
    named = [message | ({"name": "x"} if has_name else {}) for message, (_, has_name) in zip(plain, said, strict=True)]
    whole = "".join(text for content, _ in said for text in _texts(content))
    assert size(*plain) == size(*named) == PromptSize.of(whole)


def _texts(content: object) -> list[str]:
    parts = content if isinstance(content, list) else [content or ""]
    return [str(part["text"] if isinstance(part, dict) else part) for part in parts]


MEDIA: list[tuple[dict[str, object], int]] = [
    ({"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 2_000_000}}, prompt.IMAGE_TOKENS),
    ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}, prompt.IMAGE_LOW_TOKENS),
    ({"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"}, prompt.IMAGE_LOW_TOKENS),
    ({"type": "input_audio", "input_audio": {"data": "A" * 2_000_000, "format": "wav"}, "detail": "low"}, prompt.AUDIO_TOKENS),
    ({"type": "file", "file": {"file_data": "A" * 2_000_000}}, prompt.FILE_TOKENS),
    ({"type": "hologram", "payload": "A" * 2_000_000}, prompt.UNKNOWN_TOKENS),
]


@pytest.mark.parametrize(("part", "tokens"), MEDIA, ids=[f"fc_12-{part['type']}-{tokens}" for part, tokens in MEDIA])
def test_media_count_a_bounded_amount_and_pass_unchanged(part: dict[str, object], tokens: int) -> None:
    """However many bytes carry an image, audio or a file, the same number of tokens is counted, and no byte changes."""
    body = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "What?"}, part]}]})
    call = read(CHAT, body)
    assert (call.prompt.extra, call.prompt.ascii) == (tokens, 5 + prompt.MESSAGE_CHARACTERS)
    assert rewrite(body, call, model="m", drop=PRIORITY, set_fields={}) is body


def test_the_bound_on_pieces_is_exact() -> None:
    """As many as the bound pass, whether they are plain messages, parts or tool calls; one more does not."""
    plain = {"role": "user", "content": ""}
    parts = {"role": "user", "content": [""] * 5}
    calls = {"role": "assistant", "content": "", "tool_calls": [CALL] * 4}
    for last, pieces in ((plain, 1), (parts, 6), (calls, 5)):
        messages = [plain] * (prompt.PIECES_MAX - pieces)
        assert size(*messages, last).ascii == (80_000 if last is calls else 0)
        assert refusal(CHAT, orjson.dumps({"model": "m", "messages": [*messages, plain, last]})).param == "messages"


@pytest.mark.parametrize("odd", [None, 5, "hi", ["hi"]])
def test_one_message_that_is_no_object_is_refused(odd: object) -> None:
    """It is found among plain messages, wherever it stands."""
    plain = {"role": "user", "content": "hi"}
    for messages in ([odd, plain], [plain, odd], [{"role": "assistant", "content": None}, odd, plain]):
        assert refusal(CHAT, orjson.dumps({"model": "m", "messages": messages})).param == "messages"


def test_the_number_of_pieces_is_bounded() -> None:
    """Bodies that would keep the event loop busy with tiny pieces are refused before they are walked."""
    many: list[dict[str, object]] = [{}] * (prompt.PIECES_MAX // 2 + 1)
    assert refusal(CHAT, orjson.dumps({"model": "m", "messages": many * 2})).param == "messages"
    assert refusal(CHAT, orjson.dumps({"model": "m", "messages": [{"content": many}, {"content": many}]})).param == "messages"
    assert refusal(CHAT, orjson.dumps({"model": "m", "messages": [{"content": many, "tool_calls": many, "role": "x"}]})).param == "messages"
    assert refusal(COMPLETIONS, orjson.dumps({"model": "m", "prompt": ["a"] * 2049})).param == "prompt"
    assert refusal(EMBEDDINGS, orjson.dumps({"model": "m", "input": [[1]] * 2049})).param == "input"
    assert "values" in str(refusal(COMPLETIONS, b'{"model":"m","prompt":[' + b"1," * 1_000_001 + b"1]}"))
    members = b"".join(b'"k":1 ,' for _ in range(5000))
    assert "members" in str(refusal(COMPLETIONS, b'{%b"model":"m","prompt":"x"}' % members))


def test_as_many_token_ids_as_fit_a_context_are_taken() -> None:
    """The bound on values does not touch prompts that an engine could serve."""
    ids = [123_456] * 900_000
    assert read(COMPLETIONS, orjson.dumps({"model": "m", "prompt": ids})).prompt.ids == 900_000
