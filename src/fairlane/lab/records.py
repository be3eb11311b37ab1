"""Recorded requests as a predictor would have been asked about them.

Beside the columns that every trace has, these are used where they are there: `tenant`, `class`, `model`, `template` (any
text), `max_tokens`, `tools` (how many), `response_format` (not empty: demanded), `prompt` (what the user said last), and, to
follow conversations, `session_id`, or `hash_ids` (blocks of the prompt: who shares more than the first block goes on with what
the other said), or `previous_tokens` (of the turn before, empty for none).

An answer is complete when an ordinary engine would be done with it, and is not known before: `TTFT_S` after its arrival and
`TOKEN_S` more for each token.
"""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fairlane.predict.asked import Asked
from fairlane.predict.trained import hints
from fairlane.sim.load.traces import Cells, lines

TTFT_S = 0.5
TOKEN_S = 0.02
MODEL = "model"  # of a trace that names none
TENANT = "tenant"
RANKS = 1_000  # numbers that stand for the names of classes


class Record(NamedTuple):
    """One request, what the answer came to, and when it was there."""

    t: float
    asked: Asked
    cap: int | None
    tokens: int
    done: float


class Turn(NamedTuple):
    """The end of a conversation so far."""

    prompt_tokens: int
    tokens: int
    done: float
    turns: int


Conversations = dict[str, Turn]  # by the name of a session or block


def read(path: Path, conversations: Conversations | None = None) -> Iterator[Record]:
    """The requests of a trace, as they come. They go on with these conversations, which are kept up with them."""
    conversations = {} if conversations is None else conversations
    for cells in lines(path):
        t, prompt_tokens, tokens = cells.number("t"), cells.tokens("input_tokens"), cells.tokens("output_tokens")
        done = t + TTFT_S + TOKEN_S * tokens
        known, names = _conversation(cells, conversations)
        before = known if known is not None and known.done <= t else None
        turn = Turn(prompt_tokens, tokens, done, 1 if before is None else before.turns + 1)
        for name in names:
            conversations[name] = turn
        asked = Asked(
            tenant=cells.text("tenant") or TENANT,
            model=cells.text("model") or MODEL,
            rank=_hash(cells, "class") % RANKS,
            template=_hash(cells, "template"),
            prompt_tokens=prompt_tokens,
            previous=_previous(cells, before),
            idle_s=None if before is None else t - before.done,
            hints=_hints(cells, prompt_tokens, before),
        )
        yield Record(t, asked, cells.tokens("max_tokens") if cells.text("max_tokens") else None, tokens, done)


def _hash(cells: Cells, name: str) -> int:
    """The same number for the same text in every trace, 0 for none."""
    return zlib.crc32((cells.text(name) or "").encode())


def _conversation(cells: Cells, conversations: Conversations) -> tuple[Turn | None, list[str]]:
    """The conversation that a request goes on with, and the names by which its own answer is to be found."""
    session, blocks = cells.text("session_id"), (cells.text("hash_ids") or "").split()
    if session is not None:
        return conversations.get(session), [session]
    known = 0
    while known < len(blocks) and blocks[known] in conversations:
        known += 1
    return conversations[blocks[known - 1]] if known > 1 else None, blocks


def _previous(cells: Cells, before: Turn | None) -> int | None:
    if cells.text("previous_tokens"):
        return cells.tokens("previous_tokens")
    return None if before is None else before.tokens


def _hints(cells: Cells, prompt_tokens: int, before: Turn | None) -> tuple[float, ...]:
    return hints.of(
        cells.text("prompt") or "",
        turns=0 if before is None else before.turns,
        last_tokens=prompt_tokens if before is None else max(0, prompt_tokens - before.prompt_tokens - before.tokens),
        tools=int(cells.number("tools")) if cells.text("tools") else 0,
        is_formatted=cells.text("response_format") is not None,
    )
