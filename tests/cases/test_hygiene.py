"""Section 8 of the field cases: requests that are wrong are said to be wrong, and cost nobody anything."""

import pytest

from tests.caller import Answer, chat
from tests.harness import Start, engine, key_of, settings, tenant
from tests.stub import Stub

GOOD = chat()
BAD: dict[str, tuple[object, str | None]] = {  # the body, and the parameter that the answer has to name
    "empty": (b"", None),
    "brace": (b"{", None),
    "list": (b"[]", None),
    "string": (b'"x"', None),
    "null": (b"null", None),
    "number": (b"5", None),
    "invalid_utf8": (b'{"model": "m", "messages": [{"role": "user", "content": "\xff\xfe"}]}', None),
    "deep_nesting": (b'{"model": "m", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", None),
    "deep_nesting_unclosed": (b"[" * 100_000, None),
    "trailing_garbage": (b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]} x', None),
    "messages_string": ({**GOOD, "messages": "hi"}, "messages"),
    "messages_number": ({**GOOD, "messages": 7}, "messages"),
    "messages_missing": ({"model": "m"}, "messages"),
    "messages_null": ({**GOOD, "messages": None}, "messages"),
    "messages_empty": ({**GOOD, "messages": []}, "messages"),
    "message_string": ({**GOOD, "messages": ["hi"]}, "messages"),
    "model_missing": ({"messages": GOOD["messages"]}, "model"),
    "model_null": ({**GOOD, "model": None}, "model"),
    "model_number": ({**GOOD, "model": 7}, "model"),
    "model_empty": ({**GOOD, "model": ""}, "model"),
    "model_list": ({**GOOD, "model": ["m"]}, "model"),
    "stream_string": ({**GOOD, "stream": "yes"}, "stream"),
    "stream_number": ({**GOOD, "stream": 1}, "stream"),
}
TAKEN = [("X-Request-Id", "taken")]
INTERNALS = ("Traceback", "fairlane/", ".py", "orjson", "pydantic", "Error(")


def assert_clean_400(answer: Answer, param: str | None) -> None:
    """Hold an answer to a bad request to the shape that clients know, with nothing of our insides in it."""
    assert (answer.status, answer.code, answer.whole) == (400, "invalid_request", True)
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] is None or isinstance(error["param"], str)
    if param is not None:
        assert str(error["param"]).startswith(param)
    assert (answer.header("content-type") or "").startswith("application/json")
    assert answer.header("retry-after") is None
    assert not [word for word in INTERNALS if word in answer.body.decode()]


def test_fc_42_bad_input_is_a_clean_400(stub: Stub, start: Start) -> None:
    """Every malformed body is told so, none reaches the engine or uses quota, and the gateway goes on."""
    limits = {"requests_per_minute": {"rate": 1, "burst": 3}, "tokens_per_minute": {"rate": 1, "burst": 100}}
    gateway = start(settings([engine(stub, 2)], tenants=[tenant("careful", **limits)]))
    for name, (body, param) in BAD.items():
        answer = gateway.post(body, key=key_of("careful"))
        try:
            assert_clean_400(answer, param)
        except AssertionError as error:
            error.add_note(f"case {name}: {answer}")
            raise
    assert stub.requests == []
    assert gateway.outcomes("invalid") == len(BAD)
    assert [gateway.post(GOOD, key=key_of("careful")).status for _ in range(4)] == [200, 200, 200, 429]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"model": "m"}, "prompt"),
        ("/v1/completions", {"model": "m", "prompt": 7}, "prompt"),
        ("/v1/completions", {"model": "m", "prompt": {"a": 1}}, "prompt"),
        ("/v1/embeddings", {"model": "m"}, "input"),
        ("/v1/embeddings", {"model": "m", "input": None}, "input"),
    ],
)
def test_fc_42_other_routes_are_as_strict(stub: Stub, start: Start, path: str, body: object, param: str) -> None:
    """What is not a prompt is refused on the other routes too, by its name."""
    gateway = start(settings([engine(stub, 2)]))
    assert_clean_400(gateway.post(body, path=path), param)
    assert stub.requests == []


def test_fc_42_an_unknown_model_is_404(stub: Stub, start: Start) -> None:
    """A well-formed request for a model that nobody serves gets the code that clients know for it."""
    gateway = start(settings([engine(stub, 2)]))
    answer = gateway.post(chat(model="no-such-model"))
    assert (answer.status, answer.code) == (404, "model_not_found")
    assert stub.requests == []


def test_two_requests_of_one_id_are_two_for_the_engine(stub: Stub, start: Start) -> None:
    """Whoever chooses the id of another's request cannot address it there; the callers see the one that they chose."""
    gateway = start(settings([engine(stub, 2)]))
    answers = [gateway.post(chat(), headers=TAKEN) for _ in range(2)] + [gateway.post(chat())]
    told = [answer.header("x-request-id") or "" for answer in answers]
    ids = [seen.header("x-request-id") or "" for seen in stub.requests]
    assert told[:2] == ["taken", "taken"]
    assert len(set(ids)) == 3
    assert all(one.startswith(f"{known}-") for one, known in zip(ids, told, strict=True))
