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
class Gauges:
    """What an engine tells of its load at one moment, all its ranks together. None: it did not say.

    `running` and `waiting`: requests, whoever sent them; `kv_ratio`: the used part of the KV cache, of the fullest rank.
    The others count from the engine's start: `preemptions` are requests whose work was thrown away for want of KV,
    `prompt_tokens` those that were looked up in its prefix cache, and `cached_tokens` those that were found there.
    """

    running: int | None = None
    waiting: int | None = None
    kv_ratio: float | None = None
    preemptions: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What one round of probes told. None and () mean that the engine did not say.

    `slots`: requests it runs at once; `context`: most tokens of one request; `kv_tokens`: tokens that its KV cache holds;
    `models`: the names it answers to; `gauges`: its load; `problem`: what an operator should know, in a few words. A healthy
    engine can have one, too.
    """

    healthy: bool
    slots: int | None = None
    context: int | None = None
    kv_tokens: int | None = None
    models: tuple[str, ...] = ()
    gauges: Gauges | None = None
    problem: str | None = None


class Adapter(Protocol):
    """One kind of engine.

    `probes` are the paths to GET at each round, in order, below the engine's base path. `full_status` is the HTTP status by
    which it says that its own queue is full, 0 where that is not told apart from other refusals. `priority_sign` tells how it
    takes the field `priority`: 1 if the lowest runs first, -1 if the highest does, 0 if it knows no such field. `works_on` tells
    whether it may go on with a request after its connection was closed, so that the slot is not free yet.
    """

    kind: str
    probes: tuple[str, ...]
    full_status: int
    priority_sign: int
    works_on: bool

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
