"""Rewriting of bodies: owned members change in any spelling, and no other byte does."""

import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.gateway.calls.body import CAP_MAX, CHAT, STEERING, read, rewrite
from tests.gateway.calls.bodies import HELLO, anything, escaped, spelt, with_member

NONE: frozenset[str] = frozenset()
PRIORITY = frozenset({"priority"})


def test_deep_nesting_below_the_bound_is_read_and_rewritten() -> None:
    """A body as deep as the bound allows can still be changed at its top level."""
    deep = b'{"model":"m","messages":[{"role":"user","content":"x"}],"x":%b,"priority":1}' % (b"[" * 250 + b"]" * 250)
    out = rewrite(deep, read(CHAT, deep), model="n", drop=PRIORITY, set_fields={})
    assert out == deep.replace(b'"m"', b'"n"').replace(b',"priority":1', b"")


@pytest.mark.parametrize(("first", "second"), [(10, 99), (99, 10), (10, 2**63)])
def test_of_two_caps_the_smaller_wins_at_the_engine_too(first: int, second: int) -> None:
    """An engine that obeys either spelling gets the cap that was counted."""
    body = orjson.dumps({"model": "m", "max_tokens": first, "messages": HELLO, "max_completion_tokens": second})
    call = read(CHAT, body)
    sent = orjson.loads(rewrite(body, call, model=None, drop=NONE, set_fields={}))
    assert call.cap == sent["max_tokens"] == sent["max_completion_tokens"] == 10


@pytest.mark.parametrize(("first", "second"), [(CAP_MAX + 5, CAP_MAX + 9), (CAP_MAX + 9, CAP_MAX + 5), (2**64 - 1, CAP_MAX + 5)])
def test_of_two_huge_caps_the_smaller_is_sent(first: int, second: int) -> None:
    """What is counted saturates; what is sent is the client's own number."""
    body = orjson.dumps({"model": "m", "max_tokens": first, "messages": HELLO, "max_completion_tokens": second})
    call = read(CHAT, body)
    sent = orjson.loads(rewrite(body, call, model=None, drop=NONE, set_fields={}))
    assert (call.cap, sent["max_tokens"], sent["max_completion_tokens"]) == (CAP_MAX, CAP_MAX + 5, CAP_MAX + 5)


def test_caps_that_agree_are_left_alone() -> None:
    """Two spellings of one number, or one of them null, need no change."""
    for other in (7, None):
        body = orjson.dumps({"model": "m", "max_tokens": 7, "messages": HELLO, "max_completion_tokens": other})
        call = read(CHAT, body)
        assert call.cap == 7
        assert rewrite(body, call, model="m", drop=PRIORITY, set_fields={}) is body


def test_several_members_are_added_in_order() -> None:
    """New members come last, as they are given, and changed ones stay in their place."""
    body = b'{"model":"m","messages":[{}], "b":0 }'
    out = rewrite(body, read(CHAT, body), model="n", drop=PRIORITY, set_fields={"a": b"1", "b": b"2", 'c"': b"[3]"})
    assert out == b'{"model":"n","messages":[{}], "b":2 ,"a":1,"c\\"":[3]}'


def test_numbers_at_the_edge_keep_their_bytes() -> None:
    """A number that readers would write differently is forwarded as it was sent."""
    body = with_member(CHAT, "temperature", "1.0000000000000000000001E+000")
    out = rewrite(body, read(CHAT, body), model="n", drop=NONE, set_fields={})
    assert out == body.replace(b'"m"', b'"n"')


@pytest.mark.parametrize("name", sorted(STEERING), ids=lambda name: f"fc_50-{name}")
def test_members_that_could_steer_the_upstream_never_reach_it(name: str) -> None:
    """Such a member is removed in any spelling and as often as it is given."""
    body = (
        f'{{"{name}":"http://127.0.0.1:1/","model":"m","{escaped(name)}":1,"messages":[{{"role":"user"}}],"{name}":{{"a":[1]}}}}'.encode()
    )
    out = rewrite(body, read(CHAT, body), model=None, drop=NONE, set_fields={})
    assert out == b'{"model":"m","messages":[{"role":"user"}]}'


def test_nothing_to_change_returns_the_same_object() -> None:
    """A body without owned members, and with the engine's own name of the model, is not copied."""
    body = b' {"model" : "m", "messages" : [{"role":"user"}]} \n'
    call = read(CHAT, body)
    assert rewrite(body, call, model=None, drop=PRIORITY, set_fields={}) is body
    assert rewrite(body, call, model="m", drop=PRIORITY, set_fields={}) is body


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"priority":1,"model":"m","messages":[{}]}', '{"model":"n","messages":[{}],"s":1}'),
        ('{"model":"m","priority":1,"messages":[{}]}', '{"model":"n","messages":[{}],"s":1}'),
        ('{"model":"m","messages":[{}],"priority":1}', '{"model":"n","messages":[{}],"s":1}'),
        ('{"model":"m","messages":[{}],"prior\\u0069ty":[{}] , "vip":2 } ', '{"model":"n","messages":[{}] ,"s":1} '),
        ('{ "vip" : 1 , "vip" : 2 , "model":"m","messages":[{}], "vip":3, "vip":4}\n', '{ "model":"n","messages":[{}],"s":1}\n'),
        (
            '{"messages":[{"content":"模型 \\"priority\\":1, }"}],"model":"m","s":0}',
            '{"messages":[{"content":"模型 \\"priority\\":1, }"}],"model":"n","s":1}',
        ),
        ('{"messages":[{"model":"m","priority":1}],\t"model":"m"}', '{"messages":[{"model":"m","priority":1}],\t"model":"n","s":1}'),
    ],
)
def test_members_are_changed_in_place(body: str, expected: str) -> None:
    """Owned members go wherever they stand, new ones come last, and texts that look like members stay."""
    raw = body.encode()
    out = rewrite(raw, read(CHAT, raw), model="n", drop=frozenset({"priority", "vip"}), set_fields={"s": b"1"})
    assert out.decode() == expected


def test_names_in_any_script_replace_the_model() -> None:
    """The engine's name of a model is written as a JSON string."""
    body = '{"model":"小","messages":[{"role":"user","content":"é"}]}'.encode()
    out = rewrite(body, read(CHAT, body), model='a"大\n', drop=NONE, set_fields={})
    assert out == '{"model":"a\\"大\\n","messages":[{"role":"user","content":"é"}]}'.encode()


@pytest.mark.parametrize(
    ("options", "expected"),
    [(None, {"include_usage": True}), ({}, {"include_usage": True}), ({"include_usage": False, "x": 1}, {"include_usage": True, "x": 1})],
)
def test_usage_is_asked_for_without_losing_other_options(options: object, expected: object) -> None:
    """The value to send keeps what the client set beside the report of usage."""
    body = orjson.dumps({"model": "m", "messages": HELLO, "stream": True, "stream_options": options})
    call = read(CHAT, body)
    out = rewrite(body, call, model=None, drop=NONE, set_fields={"stream_options": call.stream_options})
    assert orjson.loads(out) == {"model": "m", "messages": HELLO, "stream": True, "stream_options": expected}
    assert call.include_usage is False


blanks = st.text(" \t\r\n", max_size=2)
doomed = ["priority", "vip", "api_base"]


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, list[tuple[str, str]]]:
    """A valid chat in any layout, with its members as (name, text) in order; names that are not metered may repeat."""
    extra = draw(st.lists(st.tuples(st.sampled_from([*doomed[1:], "set", "other", "x", "é", "名"]), anything), max_size=6))
    pairs: list[tuple[str, object]] = [("model", "m"), ("messages", [{"role": "user", "content": draw(st.text(max_size=9))}]), *extra]
    if draw(st.booleans()):
        pairs.append(("priority", draw(anything)))
    members = []
    for name, value in draw(st.permutations(pairs)):
        written = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
        spelling = draw(spelt(name)) if name.isascii() else json.dumps(name)
        members.append((name, f"{spelling}{draw(blanks)}:{draw(blanks)}{written}"))
    inside = ",".join(f"{draw(blanks)}{text}{draw(blanks)}" for _, text in members)
    return f"{draw(blanks)}{{{inside}}}{draw(blanks)}", members


@settings(max_examples=300, deadline=None)
@given(bodies(), st.sampled_from([None, "m", "engine名"]), st.booleans())
def test_rewriting_keeps_every_other_byte(case: tuple[str, list[tuple[str, str]]], model: str | None, adds: bool) -> None:
    """Members that are not owned stay as written and in order; what is read from the result is what was asked for."""
    text, members = case
    body = text.encode()
    set_fields = {"set": b'{"a":1}'} if adds else {}
    out = rewrite(body, read(CHAT, body), model=model, drop=frozenset({"priority", "vip"}), set_fields=set_fields)
    owned = {*doomed, *set_fields, *({"model"} if model not in {None, "m"} else ())}
    kept = [written for name, written in members if name not in owned]
    at = 0
    for written in kept:
        at = out.index(written.encode(), at) + len(written.encode())
    pairs = [pair for pair in json.loads(text, object_pairs_hook=list) if pair[0] not in doomed]
    changed = {"model": model or "m", **({"set": [("a", 1)]} if adds else {})}
    expected = [(name, changed.get(name, value)) for name, value in pairs]
    if adds and "set" not in dict(members):
        expected.append(("set", [("a", 1)]))
    assert json.loads(out, object_pairs_hook=list) == expected
    if [name for name, _ in members if name in owned] == [] and not adds:
        assert out is body
