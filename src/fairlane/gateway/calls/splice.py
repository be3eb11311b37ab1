"""Changing members of a JSON object in its text, so that every other byte stays what the client wrote.

A body is not serialised again: numbers, escapes, spacing and the order of members would come out different. Names are
compared as JSON strings, so an escaped spelling or a repetition does not hide a member. The text is known to be a JSON
object of bounded depth; the standard library's scanner, which runs in C, finds where each value ends.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import orjson

_OPENING = re.compile(r"[ \t\n\r]*\{[ \t\n\r]*")
_COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_COMMA = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")
_scan = json.JSONDecoder().raw_decode

Edits = Mapping[str, bytes | None]
"""New JSON values of members by name; None removes the member."""


class Member(NamedTuple):
    """Where a member stands in the text: its name from `start`, its value from `value` to `end`, the next from `following`."""

    name: str
    start: int
    value: int
    end: int
    following: int | None


def members(text: str) -> Iterator[Member]:
    """The members of the object in their order, repeated ones too. Lazy: `ValueError` comes where the text goes wrong."""
    at = _after(_OPENING, text, 0)
    if text[at] == "}":
        return
    following: int | None = at
    while following is not None:
        start = following
        name, end = _scan(text, start)
        value = _after(_COLON, text, end)
        _, end = _scan(text, value)
        comma = _COMMA.match(text, end)
        following = comma.end() if comma else None
        yield Member(name, start, value, end, following)


def edited(body: bytes, edits: Edits, present: Collection[str], unique: Collection[str]) -> bytes:
    """The body with the edits made: members in `present` changed or removed, others added at the end.

    At least one present member must stay. Members in `unique` are known not to be repeated, which can spare scanning
    the rest of a long body.
    """
    changed: dict[str, bytes | None] = {}
    added: list[bytes] = []
    for name, value in edits.items():
        if name in present:
            changed[name] = value
        elif value is not None:
            added.append(b",%b:%b" % (orjson.dumps(name), value))
    if changed:
        once = all(value is not None and name in unique for name, value in changed.items())
        body = _spliced(body, changed, len(changed) if once else None)
    if added:
        end = body.rindex(b"}")
        body = b"".join((body[:end], *added, body[end:]))
    return body


def _spliced(body: bytes, edits: Edits, expected: int | None) -> bytes:
    """Replace the spans; `expected` is the number of spans after which none can follow, where that is known."""
    text = body.decode()
    pieces: list[str] = []
    at = 0
    for start, end, new in _spans(text, edits, expected):
        pieces += (text[at:start], new)
        at = end
    pieces.append(text[at:])
    return "".join(pieces).encode()


def _spans(text: str, edits: Edits, expected: int | None) -> list[tuple[int, int, str]]:
    """What to put in the place of what. A removed member takes the comma behind it along, the last ones that before."""
    spans: list[tuple[int, int, str]] = []
    kept_end = 0
    for name, start, value, end, following in members(text):
        if name not in edits:
            kept_end = end
            continue
        new = edits[name]
        if new is not None:
            spans.append((value, end, new.decode()))
            kept_end = end
        elif following is not None:
            spans.append((start, following, ""))
        else:
            while spans and spans[-1][0] >= kept_end:
                spans.pop()
            spans.append((kept_end, end, ""))
        if len(spans) == expected:
            break
    return spans


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    if match is None:
        raise ValueError("not a JSON object")
    return match.end()
