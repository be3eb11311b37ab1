"""Shapes of requests: what tells templates and conversations apart, and what a trained model is shown."""

import orjson
import pytest
from hypothesis import given

from fairlane.gateway.calls import shape
from fairlane.gateway.calls.body import CHAT, COMPLETIONS, EMBEDDINGS, read
from fairlane.gateway.calls.shape import Shape
from fairlane.predict.estimate import PromptSize
from fairlane.predict.trained.hints import NAMES
from tests.gateway.calls.bodies import HELLO, anything, chat

Message = dict[str, object]


def said(role: str, content: object) -> Message:
    return {"role": role, "content": content}


def template(*messages: object, **members: object) -> int:
    return chat(messages=list(messages) or HELLO, **members).shape.template


def hint(name: str, *messages: object, **members: object) -> float:
    found = read(CHAT, orjson.dumps({"model": "m", "messages": messages or HELLO, **members}), hinted=True).shape.hints
    return found[NAMES.index(name)]


USER = said("user", "Hello")
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def test_templates_are_the_same_in_every_process() -> None:
    """What was learned of a template is found again after a restart, so these numbers may never change."""
    assert template() == 0
    assert template(said("system", "Answer yes or no."), USER) == 0x98CC8C42
    assert template(said("system", "Antworte mit Ja oder Nein, süß."), USER) == 0x909B714C
    assert template(USER, tools=TOOLS) == 0x0909C774
    assert read(COMPLETIONS, b'{"model":"m","prompt":"x"}').shape.template == 0x9D6B7A0D


def test_templates_differ_by_what_stands_in_them() -> None:
    """The beginning of the instructions, tools, format and endpoint each make another one; the user's own words do not."""
    system = said("system", "x" * shape.PREFIX)
    found = [
        template(),
        template(system, USER),
        template(said("developer", "y"), USER),
        template(system, USER, tools=TOOLS),
        template(system, USER, response_format={"type": "json_object"}),
        template(system, USER, response_format={"type": "json_schema"}),
        template(system, USER, response_format={"type": "of my own"}),
        template(USER, tools=TOOLS),
        read(COMPLETIONS, b'{"model":"m","prompt":"x"}').shape.template,
    ]
    assert len(set(found)) == len(found)
    assert template(system, said("user", "Other words"), temperature=0.5) == template(system, USER)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"messages": [said("system", "x" * 256 + "Monday"), USER]}, {"messages": [said("system", "x" * 256 + "Tuesday"), USER]}),
        ({"messages": [said("system", "x"), USER]}, {"messages": [said("system", [{"type": "text", "text": "x"}]), USER]}),
        ({"response_format": {"type": "a"}}, {"response_format": {"type": "b"}}),
        ({"response_format": {"type": "text"}, "tools": []}, {"response_format": None, "tools": None}),
        ({"functions": [{"name": "f"}]}, {"tools": TOOLS}),
        ({"messages": [USER, said("system", "late")]}, {}),
    ],
    ids=["beyond the prefix", "parts", "formats of all sorts", "nothing said", "the older tools", "no first message"],
)
def test_templates_are_alike_where_they_should_be(one: dict[str, object], other: dict[str, object]) -> None:
    """What changes from request to request, or means the same, makes no other template."""
    assert chat(**one).shape.template == chat(**other).shape.template


def test_the_next_turn_knows_the_one_before() -> None:
    """A turn's number is what the next one asks for, with tool calls in between and after them."""
    for opening in ([USER], [said("system", "Be brief."), USER]):
        first = chat(messages=opening).shape
        called = [*opening, said("assistant", None) | {"tool_calls": [{"id": "1"}]}]
        second = chat(messages=[*called, said("tool", "21 degrees"), said("tool", "wind")]).shape
        third = chat(messages=[*called, said("tool", "21 degrees"), said("tool", "wind"), said("assistant", "Warm."), USER]).shape
        assert first.before == 0
        assert second.before == first.turn
        assert third.before == second.turn
        assert len({first.turn, second.turn, third.turn, 0}) == 4


def test_conversations_differ_by_their_beginning_and_their_end() -> None:
    """Those that begin alike and those that end alike are not one."""
    turns = [
        chat(messages=[said("user", begin), said("assistant", answer), said("user", end)]).shape.turn
        for begin in ("a", "b")
        for answer in ("c", "d")
        for end in ("e", "f")
    ]
    assert len(set(turns)) == 8


def test_hints_are_computed_only_where_they_are_wanted() -> None:
    """Without a trained model nobody reads them, and they are what costs most."""
    assert chat().shape.hints == ()
    assert len(read(CHAT, orjson.dumps({"model": "m", "messages": HELLO}), hinted=True).shape.hints) == len(NAMES)
    assert read(EMBEDDINGS, b'{"model":"m","input":"x"}', hinted=True).shape == Shape()


@pytest.mark.parametrize(
    ("name", "value", "messages", "members"),
    [
        ("turns", 0.0, [USER], {}),
        ("turns", 1.0, [USER, said("assistant", "x"), USER], {}),
        ("asks", 1.0, [said("user", "No"), said("assistant", "x"), said("user", "Why?"), said("tool", "x")], {}),
        ("code", 1.0, [said("system", "x"), said("user", [{"type": "text", "text": "some python"}])], {}),
        ("code", 0.0, [said("system", "python"), USER], {}),
        ("tools", 1.0, [USER], {"tools": TOOLS}),
        ("format", 1.0, [USER], {"response_format": {"type": "json_object"}}),
        ("format", 0.0, [USER], {"response_format": {"type": "text"}}),
    ],
)
def test_hints_tell_of_the_last_words_of_the_user(name: str, value: float, messages: list[Message], members: dict[str, object]) -> None:
    """And of the shape around them."""
    assert hint(name, *messages, **members) == value


def test_the_prompt_of_a_completion_gives_hints() -> None:
    """It is what the user said last."""
    found = read(COMPLETIONS, b'{"model":"m","prompt":"is it so?"}', hinted=True).shape.hints
    assert found[NAMES.index("asks")] == 1.0


@given(anything, anything, anything)
def test_no_shape_is_too_odd(messages: object, tools: object, form: object) -> None:
    """Whatever stands there, something is said of it."""
    fields = {"messages": messages, "tools": tools, "response_format": form}
    found = shape.of(CHAT.path, fields, PromptSize(1), hinted=True)
    assert 0 <= found.template < 1 << 32
    assert len(found.hints) == len(NAMES)
