"""Reading of request bodies: what is understood, what is refused, and by which name."""

import json
from collections.abc import Callable

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.errors import Refused
from fairlane.gateway.calls import body as module
from fairlane.gateway.calls import prompt
from fairlane.gateway.calls.body import CHAT, COMPLETIONS, EMBEDDINGS, METERED, ROUTES, STEERING, Route, read, rewrite
from fairlane.predict.estimate import Estimator, PromptSize
from tests.gateway.calls.bodies import HELLO, anything, chat, escaped, refusal, spelt, with_member

NONE: frozenset[str] = frozenset()
PRIORITY = frozenset({"priority"})


def test_a_plain_chat_is_understood() -> None:
    """Everything a chat may say about itself arrives in the call."""
    call = chat(
        stream=True, stream_options={"include_usage": True}, max_tokens=50, n=2, service_tier="flex", priority=-3, user="u", temperature=0.5
    )
    assert (call.route, call.model, call.stream, call.include_usage) == (CHAT, "m", True, True)
    assert (call.cap, call.choices, call.service_tier, call.priority, call.bad_priority, call.user) == (50, 2, "flex", -3, False, "u")
    assert call.prompt == PromptSize(5 + prompt.MESSAGE_CHARACTERS)


def test_a_minimal_chat_has_the_defaults() -> None:
    """What is absent or null is no cap, one choice, no stream and no wish."""
    absent = chat()
    names = "stream stream_options max_tokens max_completion_tokens n best_of service_tier priority user tools functions response_format"
    null = chat(**dict.fromkeys(names.split()))
    for call in (absent, null):
        assert (call.stream, call.include_usage, call.cap, call.choices) == (False, False, None, 1)
        assert (call.service_tier, call.priority, call.bad_priority, call.user) == (None, None, False, None)
    assert absent.prompt == null.prompt


def test_routes_are_found_by_their_path() -> None:
    """Each metered path leads to its route."""
    assert {path: ROUTES[path] for path in ROUTES} == {
        "/v1/chat/completions": CHAT,
        "/v1/completions": COMPLETIONS,
        "/v1/embeddings": EMBEDDINGS,
    }


BAD_BODIES = {
    "empty": b"",
    "blank": b" ",
    "open": b"{",
    "list": b"[]",
    "string": b'"x"',
    "null": b"null",
    "number": b"5",
    "utf-16 mark": b"\xff\xfe",
    "utf-8 mark": b'\xef\xbb\xbf{"model":"m"}',
    "invalid utf-8": b'{"model":"m","messages":[{"content":"\xff"}]}',
    "lone surrogate": b'{"model":"m","messages":[{"content":"\\ud800"}]}',
    "100,000 deep": b"[" * 100_000,
    "600 deep": b"[" * 600 + b"]" * 600,
    "300 objects deep": b'{"a":' * 300 + b"1" + b"}" * 300,
    "trailing garbage": b'{"model":"m","messages":[{"role":"user"}]} x',
    "trailing comma": b'{"model":"m",}',
    "single quotes": b"{'model':'m'}",
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=[f"fc_42-{name}" for name in BAD_BODIES])
@pytest.mark.parametrize("route", [CHAT, COMPLETIONS, EMBEDDINGS], ids=lambda route: route.path)
def test_malformed_bodies_are_refused(route: Route, body: bytes) -> None:
    """What is no JSON object of sane depth in UTF-8 is a clean 400."""
    assert str(refusal(route, body)).startswith("The request body ")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "The request body is empty."),
        (b" \n", "The request body is empty."),
        (b'{"a": x}', " at byte 6."),
        ('{"é": x}'.encode(), " at byte 7."),
        (b'{"a":"\xff"}', "not UTF-8 at byte 6."),
    ],
)
def test_a_fault_in_the_json_is_told_by_its_byte(body: bytes, told: str) -> None:
    """Bytes are counted, not characters, and an empty body is called empty."""
    assert str(refusal(CHAT, body)).endswith(told)


BAD_VALUES: list[tuple[Route, str, str]] = [  # values separated by blanks
    (CHAT, "messages", '"hi" 5 null {} [] ["hi"] [5] [[]] [{"role":"user"},null]'),
    (COMPLETIONS, "prompt", 'null 5 [] {} [[]] [1.5] [true] ["a",1] [[1],"a"] [["a"]] [null]'),
    (EMBEDDINGS, "input", 'null false [] [1,"a"] [[1],[]] [{}]'),
    (CHAT, "stream", '"yes" 1 0 [] {}'),
    (CHAT, "stream_options", '"yes" true []'),
    (CHAT, "service_tier", "5 true [] {}"),
    *[(route, "model", 'null 7 "" [] true {"a":1}') for route in (CHAT, COMPLETIONS, EMBEDDINGS)],
    *[(route, name, '0 -1 1.5 1.0 "2" true [] 129 1e30') for route in (CHAT, COMPLETIONS) for name in ("n", "best_of")],
]
BAD_MEMBERS = [(route, name, value) for route, name, values in BAD_VALUES for value in values.split()]


@pytest.mark.parametrize(("route", "name", "value"), BAD_MEMBERS, ids=[f"fc_42-{r.path[4:]}-{n}-{v}" for r, n, v in BAD_MEMBERS])
def test_wrong_members_are_refused_by_name(route: Route, name: str, value: str) -> None:
    """A member that is counted on and has a wrong type or value is refused, and the refusal names it."""
    error = refusal(route, with_member(route, name, value))
    assert error.param == name
    assert f"'{name}'" in str(error)


MEMBERS = [(CHAT, "model"), (CHAT, "messages"), (COMPLETIONS, "prompt"), (EMBEDDINGS, "input")]


@pytest.mark.parametrize(("route", "name"), MEMBERS, ids=[f"{route.path[4:]}-{name}" for route, name in MEMBERS])
def test_missing_members_are_refused_by_name(route: Route, name: str) -> None:
    """A member that every request of the route needs is missed by its name."""
    members = orjson.loads(with_member(route, "model", '"m"'))
    del members[name]
    assert refusal(route, orjson.dumps(members)).param == name


def test_include_usage_must_be_a_truth_value() -> None:
    """The one option of a stream that is read is named with its path."""
    assert refusal(CHAT, with_member(CHAT, "stream_options", '{"include_usage":"yes"}')).param == "stream_options.include_usage"


CAP_NAMES = [(CHAT, "max_tokens"), (CHAT, "max_completion_tokens"), (COMPLETIONS, "max_tokens")]
BAD_CAPS = ["-1", "0", "1.5", "1.0", '"10"', "true", "false", "1e400", "-1e400", "[]", "{}", "[5]", "1e3", "18446744073709551616"]


@pytest.mark.parametrize("value", BAD_CAPS, ids=[f"fc_18-{value}" for value in BAD_CAPS])
@pytest.mark.parametrize(("route", "name"), CAP_NAMES)
def test_odd_caps_are_refused_by_name(route: Route, name: str, value: str) -> None:
    """A cap that is no whole number of at least 1 is a 400 that names the parameter."""
    assert refusal(route, with_member(route, name, value)).param == name


GOOD_CAPS = [
    ("null", None),
    ("1", 1),
    ("4096", 4096),
    ("10000000", 10_000_000),
    ("10000001", 10_000_000),
    ("9223372036854775808", 10_000_000),
]


@pytest.mark.parametrize(("value", "cap"), GOOD_CAPS, ids=[f"fc_18-{value}" for value, _ in GOOD_CAPS])
@pytest.mark.parametrize(("route", "name"), CAP_NAMES)
def test_whole_caps_are_taken_and_huge_ones_saturate(route: Route, name: str, value: str, cap: int | None) -> None:
    """Null is no cap, whole numbers are themselves up to the bound, and the body stays as the client wrote it."""
    body = with_member(route, name, value)
    call = read(route, body)
    assert call.cap == cap
    assert rewrite(body, call, model=None, drop=NONE, set_fields={}) is body


def test_a_cap_that_engines_ignore_on_a_route_is_none() -> None:
    """A spelling without effect promises nothing, so it does not make a request look small."""
    assert read(COMPLETIONS, with_member(COMPLETIONS, "max_completion_tokens", "1")).cap is None
    assert read(CHAT, with_member(CHAT, "max_output_tokens", "1")).cap is None


NOT_NUMBERS = [
    ("NaN", None), ("Infinity", None), ("-Infinity", None), ("1e999", "temperature"), ("-1e999", "temperature"), ("[[1,NaN]]", None),
    ('{"a":[1e999]}', "temperature"), ("1" + "0" * 400, "temperature"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "param"), NOT_NUMBERS, ids=[f"fc_43-{text[:12]}" for text, _ in NOT_NUMBERS])
@pytest.mark.parametrize("route", [CHAT, COMPLETIONS, EMBEDDINGS], ids=lambda route: route.path)
def test_numbers_that_json_cannot_hold_are_refused(route: Route, text: str, param: str | None) -> None:
    """The literals are no JSON, and a number that overflows is refused with the member that holds it."""
    assert refusal(route, with_member(route, "temperature", text)).param == param
    assert refusal(route, with_member(route, "unknown", text)).param == ("unknown" if param else None)


@pytest.mark.parametrize("value", ["1.0", '"1"', "true", "[]", "{}", "1e30"], ids=lambda value: f"fc_33-{value}")
def test_a_wrong_priority_is_noted_not_refused(value: str) -> None:
    """Only whoever knows whether the tenant's priority is trusted can tell whether a wrong one matters."""
    call = read(CHAT, with_member(CHAT, "priority", value))
    assert (call.priority, call.bad_priority) == (None, True)


def test_user_is_kept_only_as_a_string() -> None:
    """A user of another type is nobody."""
    assert chat(user="张三").user == "张三"
    assert chat(user=7).user is None


def test_choices_count_every_answer_that_is_generated() -> None:
    """Each prompt gets the larger of `n` and `best_of` answers; an embedding is one whatever `n` says."""
    assert chat(n=3).choices == 3
    assert read(COMPLETIONS, b'{"model":"m","prompt":["a","b","c"],"n":2,"best_of":4}').choices == 12
    call = read(EMBEDDINGS, b'{"model":"m","input":["a","b"],"n":5,"stream":true}')
    assert (call.choices, call.cap, call.stream) == (2, 0, False)


@pytest.mark.parametrize("name", sorted(METERED))
@pytest.mark.parametrize("spell", [str, escaped], ids=["plain", "escaped"])
@pytest.mark.parametrize("filler", [0, 20_000], ids=["short", "long"])
def test_a_metered_name_given_twice_is_refused(name: str, spell: Callable[[str], str], filler: int) -> None:
    """The first and the last value of a repeated name cannot both be what was counted, however the name is spelt."""
    values = {"model": '"m"', "messages": '[{"role":"user","content":"x"}]', name: "null"} | {
        "model": '"m"',
        "messages": '[{"role":"user"}]',
    }
    pairs = [*values.items(), ("filler", f'"{"x" * filler}"'), (spell(name), values[name])]
    body = "{" + ",".join(f'"{key}":{value}' for key, value in pairs) + "}"
    error = refusal(CHAT, body.encode())
    assert error.param == name
    assert "more than once" in str(error)


def test_metered_names_deeper_in_the_body_are_no_repetition() -> None:
    """Properties of tools and plain strings may be called as the members are."""
    schema = {"model": {"type": "string"}, "stream": {}, "n": {"enum": ["model", "stream", "n"]}}
    call = chat(stream=True, n=2, tools=[{"type": "function", "function": {"name": "model", "parameters": schema}}])
    assert (call.stream, call.choices) == (True, 2)
    spaced = json.dumps({"model": "m", "messages": [{"role": "user", "content": "\x7f", "model": "x"}], "user": "user"}).encode()
    assert read(CHAT, spaced).model == "m"


@pytest.mark.parametrize("name", ["Model", "MAX_TOKENS", "Priority", "Api_Base", "\u017ftream", "max_to\u212aens"])
def test_a_name_that_differs_by_case_only_is_refused(name: str) -> None:
    """An engine that matches names without case must not find a second value."""
    error = refusal(CHAT, orjson.dumps({"model": "m", "messages": HELLO, name: "x"}))
    assert error.param == name.casefold()


def test_other_names_may_have_capitals() -> None:
    """Unknown members of any spelling are the engine's matter."""
    assert chat(topK=5, Ünknown=1).model == "m"


def test_the_usual_names_need_no_look() -> None:
    """None of them steers an engine, and none differs from an owned one by its case only."""
    assert not module.USUAL & STEERING
    assert not {name for name in module.USUAL if name.casefold() != name}
    assert not module.USUAL & {"n", "best_of", "service_tier", "priority"}


usual = st.sampled_from(sorted(module.USUAL - {"model", "messages", "prompt", "input"}))
few = st.none() | st.booleans() | st.integers(-1, 3) | st.just(module.CAP_MAX + 1) | st.just({"include_usage": True}) | st.text(max_size=2)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from([CHAT, COMPLETIONS, EMBEDDINGS]), st.dictionaries(usual, few, max_size=5), st.sampled_from(["m", "", 5]))
def test_an_unknown_name_changes_nothing(route: Route, members: dict[str, object], model: object) -> None:
    """A body of usual names only, which is read with fewer looks, is understood like the same body with another name in it."""
    body = {"model": model, "messages": HELLO, "prompt": "x", "input": "x", **members}
    said: list[tuple[object, ...]] = []
    for candidate in (body, {**body, "x-unknown": 1}):
        try:
            call = read(route, orjson.dumps(candidate))
        except Refused as refused:
            said.append((refused.reason, refused.param, str(refused)))
        else:
            said.append(call._replace(fields=call.fields - {"x-unknown"}))
    assert said[0] == said[1]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([CHAT, COMPLETIONS, EMBEDDINGS]), st.dictionaries(st.sampled_from(sorted(METERED)), anything), anything)
def test_any_json_is_read_or_refused(route: Route, members: dict[str, object], part: object) -> None:
    """Whatever stands in the members, the outcome is a call with a positive finite estimate or a refusal."""
    members |= {"model": "m"} if part else {}
    candidates = [members, members | {"messages": [{"content": part, "tool_calls": [part], "function_call": part}]}]
    candidates += [members | {"messages": [{"content": [part, {"type": part, "text": part}]}], "prompt": "x", "input": "x"}]
    for candidate in candidates:
        body = orjson.dumps(candidate)
        try:
            call = read(route, body)
        except Refused:
            continue
        guess = Estimator().estimate("t", "m", call.prompt, call.cap, call.choices)
        assert 1 <= guess.prompt_tokens <= guess.max_tokens < 10**15
        assert guess.output_tokens >= 0


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([CHAT, COMPLETIONS]), st.binary(max_size=40), st.integers(0, 60), st.integers(0, 20))
def test_any_bytes_are_read_or_refused(route: Route, junk: bytes, at: int, cut: int) -> None:
    """A body that was damaged anywhere is refused or, where it is still a request, can be rewritten to valid JSON."""
    valid = b'{"model":"m","prompt":"x","messages":[{"role":"user"}],"priority":1}'
    for body in (junk, valid[:at] + junk + valid[at + cut :]):
        try:
            call = read(route, body)
        except Refused:
            continue
        assert "priority" not in orjson.loads(rewrite(body, call, model="n", drop=PRIORITY, set_fields={}))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_repetitions_are_refused_exactly_where_they_are(data: st.DataObject) -> None:
    """A body is refused for a repetition if and only if a metered name stands twice at its top level."""
    names = data.draw(st.lists(st.sampled_from(["n", "stream", "user", "x", "max_tokens"]), max_size=5))
    pairs = [("model", '"m"'), ("messages", '[{"role":"user","content":"","n":1,"stream":"n"}]')] + [(name, "null") for name in names]
    spellings = [(data.draw(spelt(name)), value) for name, value in data.draw(st.permutations(pairs))]
    body = ("{" + data.draw(st.sampled_from([",", ", "])).join(f"{name}:{value}" for name, value in spellings) + "}").encode()
    metered = [name for name in names if name in METERED]
    if len(set(metered)) == len(metered):
        assert read(CHAT, body).cap is None
    else:
        assert metered.count(refusal(CHAT, body).param or "") > 1


def test_refusals_do_not_repeat_the_body() -> None:
    """A malformed body may hold a secret, so no message quotes it."""
    for body in (b'{"model":"sk-secret', b"sk-secret", b'{"model":["sk-secret"]}', b'{"model":"m","messages":"sk-secret"}'):
        assert "secret" not in str(refusal(CHAT, body))


def test_the_bounds_are_those_of_the_module() -> None:
    """The cap saturates where the module says, at a value that keeps sums small."""
    assert chat(max_tokens=module.CAP_MAX + 1).cap == module.CAP_MAX
    assert refusal(CHAT, with_member(CHAT, "n", str(module.CHOICES_MAX + 1))).param == "n"
