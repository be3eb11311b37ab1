"""What Fairlane has to know about one kind of engine: which pages to ask for, and how to read the answers.

An adapter is pure. The gateway sends the GET requests and hands over what came back; the adapter says how the engine
is. A probe must never be the reason why a pool stops, so an adapter reads whatever comes and raises nothing: a field
that is missing, of another type or nonsense counts as not said.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

NOT_REACHED = 0  # stands in the place of an HTTP status when no answer came


@dataclass(frozen=True, slots=True)
class Report:
    """What one round of probes told. None and () mean that the engine did not say.

    `slots`: requests it runs at once; `context`: most tokens of one request; `models`: the names it answers to;
    `problem`: what an operator should know, in a few words. A healthy engine can have one, too.
    """

    healthy: bool
    slots: int | None = None
    context: int | None = None
    models: tuple[str, ...] = ()
    problem: str | None = None


class Adapter(Protocol):
    """One kind of engine. `probes` are the paths to GET at each round, in order, below the engine's base path."""

    kind: str
    probes: tuple[str, ...]

    def read(self, answers: Sequence[tuple[int, bytes]]) -> Report:
        """Tell how the engine is from (status, body) of each probe; status 0 means that it was not reached."""


def answer(answers: Sequence[tuple[int, bytes]], index: int) -> tuple[int, bytes]:
    """Return one probe's answer; a probe that was not sent counts as not reached."""
    return answers[index] if index < len(answers) else (NOT_REACHED, b"")


def alive(status: int) -> bool:
    """Tell whether something answers there: a wrong key or an unknown page is no reason to stop sending requests."""
    return NOT_REACHED < status < 500


def trouble(status: int) -> str:
    """Name what is wrong with a status."""
    if status == NOT_REACHED:
        return "not reached"
    if status in {401, 403}:
        return f"HTTP {status}: the engine refuses the api_key"
    return f"HTTP {status}"


def parse(body: bytes) -> Any:  # noqa: ANN401 - a JSON document has any type
    """Return the JSON document of a body, or None if it is none."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def member(document: object, key: str) -> Any:  # noqa: ANN401 - a JSON document has any type
    """Return a member of a JSON object, or None if it is not there or the document is no object."""
    return document.get(key) if isinstance(document, dict) else None


def count(value: object) -> int | None:
    """Return a number of slots or tokens, or None if the value cannot be one."""
    return value if type(value) is int and value > 0 else None
