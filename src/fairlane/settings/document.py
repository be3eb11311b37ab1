"""A configuration file as a tree in which every place knows its line, and the faults found so far.

A place is a tuple of keys and indexes, `("classes", 2, "min_share")`. Scalars are read by the YAML 1.2 core rules, as
editors with a JSON Schema do: `no` and `1:30` are texts, `010` is ten. Sequences become tuples, as frozen settings hold
them. The first fault of a place is the cause and later ones are its consequences, so only the first is kept.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

from fairlane.errors import SettingsError

try:
    from yaml import CSafeLoader as _Parser
except ImportError:  # PyYAML built without libyaml: the same rules, fifteen times slower
    from yaml import SafeLoader as _Parser  # type: ignore[assignment]

Place = tuple[str | int, ...]

EACH = -1
"""In a pattern for `Document.find`: every item of a list."""

SECRETS = frozenset({"api_key", "key_hashes"})
"""Keys whose values are never repeated in a fault, whatever was written there."""

DEPTH_MAX = 16
"""Twice the depth of any setting; an alias that holds itself ends here."""

VALUES_MAX = 500_000
"""Values in a file, aliases counted as often as used: fifty thousand tenants with every key."""

_TAG = "tag:yaml.org,2002:"
_REFERENCE = re.compile(r"\$\{([^}]*)\}?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class _Core12(_Parser):
    """Resolves plain scalars by the YAML 1.2 core schema."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own shape)


for _kind, _pattern, _first in (
    ("null", r"(?:~|null|Null|NULL|)\Z", ["~", "n", "N", ""]),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)\Z", list("tTfF")),
    ("int", r"[-+]?[0-9]+\Z", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z", list("-+.0123456789")),
):
    _Core12.add_implicit_resolver(_TAG + _kind, re.compile(_pattern), _first)

_SCALARS: dict[str, Callable[[str], object]] = {
    _TAG + "null": lambda _: None,
    _TAG + "bool": lambda text: text.lower() == "true",
    _TAG + "int": int,
    _TAG + "float": float,
    _TAG + "str": str,
}

_KINDS: tuple[tuple[type, str], ...] = (
    (str, "a text"),
    (tuple, "a list"),
    (dict, "a mapping"),
    (bool, "a truth value"),
    (object, "a number"),
)


class Document:
    """One file's tree, the line of each place, and the faults."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tree: Any = None
        self.lines: dict[Place, int] = {(): 1}
        self.references: dict[Place, str] = {}  # texts as written, where an environment reference was replaced
        self.guessed: set[Place] = set()  # places of which an unknown key seems to be a misspelling
        self._faults: list[tuple[int, str]] = []
        self._faulty: set[Place] = set()

    def blame(self, place: Place, text: str, *, hint: str = "", line: int | None = None) -> None:
        """Notes a fault. One with a `line` of its own stands beside the place's fault, not instead of it."""
        if line is None:
            if place in self._faulty:
                return
            self._faulty.add(place)
            line = self.line(place)
        where = f"{path_text(place)}: " if place else ""
        self._faults.append((line, f"{self.source}:{line}: {where}{text}{f' ({hint})' if hint else ''}"))

    def faulty(self, place: Place) -> bool:
        """Whether this very place has a fault already."""
        return place in self._faulty

    @property
    def problems(self) -> list[str]:
        """Every fault, in the order of the file."""
        return [text for _, text in sorted(self._faults, key=lambda fault: fault[0])]

    def line(self, place: Place) -> int:
        """The line of a place, or of the nearest place around it that is in the file."""
        return self.lines[self.nearest(place)]

    def nearest(self, place: Place) -> Place:
        """The place itself if it is in the file, else the innermost one around it that is."""
        while place not in self.lines:
            place = place[:-1]
        return place

    def get(self, place: Place, default: object = None) -> object:
        """The value at a place, or the default."""
        return next((value for _, value in self.find(*place)), default)

    def find(self, *pattern: str | int) -> Iterator[tuple[Place, object]]:
        """The places that match the pattern, with their values; what has another shape does not match."""
        found: list[tuple[Place, Any]] = [((), self.tree)]
        for key in pattern:
            found = [member for place, value in found for member in _members(place, value, key)]
        yield from found

    def shown(self, place: Place) -> str:
        """The value as a fault may repeat it: never a secret, and a reference instead of what the environment held."""
        value = self.get(place)
        if isinstance(value, tuple | dict) or not place or SECRETS.intersection(place):
            return next(kind for types, kind in _KINDS if isinstance(value, types))
        if isinstance(value, str):
            return f"the text {self.quoted(place, value)}"
        return str(value).lower() if isinstance(value, bool) else str(value)[:60]

    def quoted(self, place: Place, text: str) -> str:
        """The text at a place in quotes, as it was written: a reference instead of what the environment held."""
        return repr(self.references.get(place, text)[:60])


def _members(place: Place, value: object, key: str | int) -> list[tuple[Place, Any]]:
    if isinstance(value, dict):
        return [((*place, key), value[key])] if key in value else []
    if not isinstance(value, tuple) or isinstance(key, str):
        return []
    if key == EACH:
        return [((*place, index), item) for index, item in enumerate(value)]
    return [((*place, key), value[key])] if key < len(value) else []


def path_text(place: Place) -> str:
    """A place as it is written in faults: `classes[2].min_share`. Keys below a secret's key may be the secret themselves."""
    text = ""
    for index, key in enumerate(place):
        if isinstance(key, int):
            text += f"[{key}]"
            continue
        plain = key if key and key.isprintable() else repr(key)
        text += ("." if text else "") + ("…" if SECRETS.intersection(place[:index]) else plain[:60])
    return text


def read(text: str, source: str, environ: Mapping[str, str]) -> Document:
    """The document in `text`, with environment references replaced.

    Raises:
        SettingsError: the text is no YAML or no mapping, so that nothing else could be looked at.
    """
    document = Document(source)
    try:
        node = yaml.compose(text, _Core12)
    except yaml.YAMLError as error:
        line, wrong = _syntax(text, error)
        raise SettingsError([f"{source}:{line}: not valid YAML: {wrong}"]) from None
    except UnicodeEncodeError as error:
        line = text[: error.start].count("\n") + 1
        raise SettingsError([f"{source}:{line}: not valid YAML: half of a surrogate pair"]) from None
    except RecursionError:
        raise SettingsError([f"{source}:1: not valid YAML: nested too deeply"]) from None
    if node is not None:
        document.lines[()] = node.start_mark.line + 1
        document.tree = _Tree(document, environ).value(node, ())
    if not isinstance(document.tree, dict | None):
        document.blame((), f"must be a mapping of sections, not {document.shown(())}")
        raise SettingsError(document.problems)
    return document


def _syntax(text: str, error: yaml.YAMLError) -> tuple[int, str]:
    """The line and what is wrong there, without a piece of the file: the line may hold a secret."""
    if not isinstance(error, yaml.MarkedYAMLError):
        position = getattr(error, "position", 0)
        return text.encode(errors="replace")[:position].count(b"\n") + 1, "a character that YAML does not allow"
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    wrong = error.problem or "cannot be read"
    if "alias" in wrong:
        wrong = "an alias (*) without its anchor (&); quote a text that begins with '*'"
    around = "\n".join(text.split("\n")[max(0, line - 2) : line])
    return line, wrong + (' (inside braces a reference needs quotes: "${NAME}")' if "${" in around else "")


class _Tree:
    """Turns nodes into values, noting lines and faults in the document."""

    def __init__(self, document: Document, environ: Mapping[str, str]) -> None:
        self._document = document
        self._environ = environ
        self._values = 0

    def value(self, node: yaml.Node, place: Place) -> object:
        self._document.lines.setdefault(place, node.start_mark.line + 1)
        self._values += 1
        if len(place) > DEPTH_MAX or self._values > VALUES_MAX:
            self._document.blame((), "nested deeper or holding more values than any configuration", line=node.start_mark.line + 1)
            raise SettingsError(self._document.problems)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return tuple(self.value(item, (*place, index)) for index, item in enumerate(node.value))
        return self._scalar(node, place)

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, object]:
        values: dict[str, object] = {}
        for key, member in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self._document.blame(place, "a key must be a plain text", line=line)
                continue
            here = (*place, key.value)
            if key.value in values:
                self._document.blame(here, f"the key appears twice, here and on line {self._document.line(here)}", line=line)
                continue
            self._document.lines[here] = line
            values[key.value] = self.value(member, here)
        return values

    def _scalar(self, node: yaml.Node, place: Place) -> object:
        try:
            value = _SCALARS[node.tag](node.value)
        except (KeyError, ValueError):
            self._document.blame(place, "has a tag (!) or a number that is not understood")
            return ""
        if value is None and place:
            self._document.blame(place, "has no value", hint="remove the key or give it a value")
        return self._replaced(value, place) if isinstance(value, str) and "${" in value else value

    def _replaced(self, text: str, place: Place) -> str:
        """The text with each `${NAME}` replaced; the replacement itself is not looked at again."""
        self._document.references[place] = text
        wrong: list[str] = []

        def replacement(match: re.Match[str]) -> str:
            name = match[1]
            if not match[0].endswith("}") or not _NAME.match(name):
                wrong.append("has a broken environment reference (write ${NAME})")
            elif not self._environ.get(name):
                wrong.append(f"the environment variable {name!r} is {'empty' if name in self._environ else 'not set'}")
            else:
                return self._environ[name]
            return ""

        replaced = _REFERENCE.sub(replacement, text)
        if wrong:
            self._document.blame(place, "; ".join(wrong))
        return replaced
