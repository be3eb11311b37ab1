"""What of a request the length of its answer may depend on, beside its size: numbers that stand for texts, never the texts.

For templates and turns only a bounded part of a body is looked at, however long it is; hints count its messages. What is read
here decides nothing but estimates, so odd shapes are no fault: they count as if nothing was there.
"""

import zlib
from functools import lru_cache
from typing import NamedTuple

from fairlane.gateway.calls.prompt import Fields
from fairlane.predict.estimate import PromptSize
from fairlane.predict.trained import hints

PREFIX = 256  # characters of a system prompt that tell it from others: what follows is often filled in anew each time
MARK = 128  # characters of a message that tell conversations apart
BACK = 8  # messages from the end among which the last answer is looked for: tool calls and their results follow it

_INSTRUCTING = ("system", "developer")
_DEFINING = frozenset({"tools", "functions", "response_format"})
_FORMATS = frozenset({"json_object", "json_schema"})


class Shape(NamedTuple):
    """Template, this turn of its conversation, the turn before (0: none), what only a trained model reads, length of the system prompt.

    The template is the same in every process, since what is learned of it outlives them; a turn is known to this one alone.
    """

    template: int = 0
    turn: int = 0
    before: int = 0
    hints: tuple[float, ...] = ()
    instructions: int = 0  # characters


def of(path: str, fields: Fields, size: PromptSize, *, hinted: bool) -> Shape:
    """The shape of a chat or a completion; `hinted`: whether hints are wanted, which takes ten times as long as all else."""
    found = _hints(fields, size) if hinted else ()
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        return Shape(_base(path, "", False), 0, 0, found)
    template = 0 if _DEFINING.isdisjoint(fields) else _base(path, _format(fields), _tools(fields) > 0)
    instructions = ""
    if _role(messages[0]) in _INSTRUCTING:
        instructions = _text(messages[0])
        template = zlib.crc32(instructions[:PREFIX].encode("utf-8", "surrogatepass"), template)
    count = len(messages)
    return Shape(template, _turn(messages, count), _before(messages, count) if count > 1 else 0, found, len(instructions))


@lru_cache(64)
def _base(path: str, form: str, tools: bool) -> int:  # noqa: FBT001 - a cache's key
    """The template of a request without a system prompt, which is 0 for a plain chat."""
    return zlib.crc32(f"{path} {form} {tools}".encode())


def _format(fields: Fields) -> str:
    """The kind of format that is demanded, of few: a client's own words would make as many templates."""
    form = fields.get("response_format")
    kind = form.get("type") if isinstance(form, dict) else None
    if not isinstance(kind, str) or kind == "text":
        return ""
    return kind if kind in _FORMATS else "other"


def _tools(fields: Fields) -> int:
    tools = fields.get("tools") or fields.get("functions")
    return len(tools) if isinstance(tools, list) else 0


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, dict) else None


def _text(message: object) -> str:
    """The text of a message, or of its first part; empty if there is none."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list) and content:
        part = content[0]
        content = part.get("text") if isinstance(part, dict) else part
    return content if isinstance(content, str) else ""


def _turn(messages: list[object], count: int) -> int:
    """A number for a conversation of the first so many messages: they begin and end like this, and are as long. Never 0."""
    last = _text(messages[count - 1])
    if count == 1:
        return hash((last[:MARK], len(last))) | 1
    first, second = _text(messages[0]), _text(messages[1])
    return hash((count, first[:MARK], len(first), second[:MARK], len(second), last[:MARK], len(last))) | 1


def _before(messages: list[object], count: int) -> int:
    """The turn that the last answer in the conversation ended; 0 if there is no answer in it."""
    for place in range(count - 1, max(0, count - 1 - BACK), -1):
        if _role(messages[place]) == "assistant":
            return _turn(messages, place)
    return 0


def _hints(fields: Fields, size: PromptSize) -> tuple[float, ...]:
    """What the user said last, and the shape around it."""
    messages, prompt = fields.get("messages"), fields.get("prompt")
    text = prompt if isinstance(prompt, str) else ""
    answers = 0
    if isinstance(messages, list):
        roles = [_role(message) for message in messages]
        answers = roles.count("assistant")
        if "user" in roles:
            text = _text(messages[len(roles) - 1 - roles[::-1].index("user")])
    tokens = PromptSize.of(text).text_tokens if answers else size.text_tokens
    return hints.of(text, turns=answers, last_tokens=round(tokens), tools=_tools(fields), is_formatted=_format(fields) != "")
