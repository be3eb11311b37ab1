"""The file that training leaves: a model as the gateway reads it, and the conversations that were going on when its data ended.

The latter are for scoring the traffic that follows: a turn of it can only be foretold by the turn before if that is known.
"""

import json
from pathlib import Path

from fairlane.errors import FairlaneError, SettingsError
from fairlane.lab.records import Conversations, Turn
from fairlane.predict.state import Document
from fairlane.predict.trained import model
from fairlane.predict.trained.boosted import Boosted

NAMES_MAX = 200_000  # of blocks and sessions, the latest


def write(path: Path, document: Document, conversations: Conversations) -> None:
    """Store a model."""
    names: dict[Turn, list[str]] = {}
    for name, turn in list(conversations.items())[-NAMES_MAX:]:
        names.setdefault(turn, []).append(name)
    document = document | {"conversations": [[*turn, " ".join(called)] for turn, called in names.items()]}
    try:
        path.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")
    except OSError as error:
        raise FairlaneError(f"{path}: cannot be written: {error.strerror}") from error


def read(path: Path) -> tuple[Boosted, Conversations]:
    """What `write` stored."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FairlaneError(f"{path}: cannot be read: {error.strerror}") from error
    lengths = model.load(data, 0.0)
    conversations: Conversations = {}
    try:
        for prompt_tokens, tokens, done, turns, called in json.loads(data).get("conversations", []):
            turn = Turn(int(prompt_tokens), int(tokens), float(done), int(turns))
            conversations.update(dict.fromkeys(called.split(), turn))
    except (ValueError, TypeError, AttributeError) as error:
        raise SettingsError([f"{path}: the conversations do not match: {error}"]) from error
    return lengths, conversations
