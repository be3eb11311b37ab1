"""What is wrong with the shape of a configuration, in words that point to the cure.

pydantic finds every misfit of types, bounds and keys; here each becomes one fault of the document, with the nearest
valid key, the section where a key belongs, or word that it is not available in this version.
"""

import difflib
import re
from collections.abc import Iterable

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fairlane.settings.document import Document, Place, path_text
from fairlane.settings.model import SECTIONS, keys_of

LATER_KEYS = frozenset({"store", "fair_by_user"})
"""Keys of later versions: refused like any other, but not as a misspelling."""

_KEYS = {pattern: keys_of(section) for pattern, section in SECTIONS}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_ITEM = re.compile(r"\[\d+\]")

_TEXTS = {
    "missing": "is required",
    "string_type": "must be text",
    "string_unicode": "must be valid Unicode text",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "finite_number": "must be a finite number",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
    "literal_error": "must be {expected}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} entry",
}
_WITHOUT_VALUE = frozenset({"missing", "fairlane", "string_unicode", "string_too_short", "string_too_long", "too_short"})
_CONSEQUENCES = frozenset({"default_factory_not_called"})


def explain(document: Document, error: ValidationError) -> None:
    """Notes everything that pydantic found, unknown keys first, because a misspelt key explains why one is missing."""
    found = error.errors(include_url=False)
    for one in found:
        if one["type"] == "extra_forbidden":
            _explain_unknown_key(document, one["loc"])
    for one in found:
        if one["type"] != "extra_forbidden" and one["type"] not in _CONSEQUENCES:
            _explain_value(document, one["loc"], one)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """The hint for a word that is not among the choices; empty if none comes near."""
    near = difflib.get_close_matches(word, list(choices), n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def _explain_unknown_key(document: Document, place: Place) -> None:
    key, around = str(place[-1]), place[:-1]
    if key in LATER_KEYS:
        document.blame(place, "not available in this version")
        return
    here = _ITEM.sub("[]", path_text(around))
    homes = [pattern for pattern, keys in _KEYS.items() if key in keys]
    near = difflib.get_close_matches(key, _KEYS.get(here, ()), n=1)
    hint = ""
    if homes:
        inside = [pattern for pattern in homes if here and pattern.startswith(here + ".")]
        hint = f"belongs {_places(inside or homes)}"
    elif near:
        document.guessed.add((*around, near[0]))
        hint = f"did you mean {near[0]!r}?"
    else:
        elsewhere = {name: f"{pattern}.{name}" for pattern, keys in _KEYS.items() if pattern for name in keys}
        far = difflib.get_close_matches(key, elsewhere, n=1, cutoff=0.75)
        hint = f"did you mean {elsewhere[far[0]]!r}?" if far else ""
    document.blame(place, "unknown key", hint=hint)


def _places(patterns: list[str]) -> str:
    """`under 'a', 'b' or 'c'`; the root has no name."""
    names = [repr(pattern) for pattern in patterns if pattern]
    if not names:
        return "at the top of the file"
    return "under " + (f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0])


def _explain_value(document: Document, loc: Place, one: ErrorDetails) -> None:
    kind, context = one["type"], one.get("ctx", {})
    if kind == "missing":
        if loc not in document.guessed:
            document.blame(loc, _TEXTS[kind])
        return
    if kind == "too_short" and len(one["input"]) >= context["min_length"]:
        return  # the entries were there, and each has its own fault
    place = document.nearest(_written(document, loc))
    value = None if place in document.references else document.get(place)  # no hint may tell what the environment held
    text = _TEXTS[kind].format_map(context) if kind in _TEXTS else str(one["msg"])
    if kind not in _WITHOUT_VALUE:
        text += f", not {document.shown(place)}"
    document.blame(place, text, hint=_meant(kind, value, str(context.get("expected", ""))))


def _written(document: Document, loc: Place) -> Place:
    """`models` may be one mapping, which is validated as a list of one."""
    return loc[:3] + loc[4:] if loc[2:3] == ("models",) and isinstance(document.get(loc[:3]), dict) else loc


def _meant(kind: str, value: object, expected: str) -> str:
    if kind == "string_type" and isinstance(value, int | float):
        return "quote it"
    if not isinstance(value, str):
        return ""
    return did_you_mean(value, re.findall(r"'([^']*)'", expected)) if expected else _plain_value(kind, value)


def _plain_value(kind: str, text: str) -> str:
    """A hint for a number or truth value that was written as a text."""
    if kind == "bool_type":
        truth = {"yes": "true", "on": "true", "true": "true", "no": "false", "off": "false", "false": "false"}.get(text.lower())
        return f"did you mean {truth}?" if truth else ""
    written = re.fullmatch(r"(-?\d[\d_,]*(?:\.\d+)?) ?([a-z]*)", text) if kind in {"float_type", "int_type"} else None
    if not written or (written[2] and written[2] not in _SECONDS):
        return ""
    number = float(re.sub("[_,]", "", written[1])) * _SECONDS.get(written[2], 1.0)
    return f"did you mean {number:.15g}?"
