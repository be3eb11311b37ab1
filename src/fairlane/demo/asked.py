"""What a request asks of the engine, read from an OpenAI body. Whatever is wrong with it raises `Refused`."""

import math
import random
from dataclasses import dataclass
from typing import Any

import orjson

from fairlane.errors import Reason, Refused

CHARS_PER_TOKEN = 4
OUTPUT_MEDIAN = 200  # tokens of an answer whose length is drawn
OUTPUT_SIGMA = 0.8  # of its logarithm: a fifth of the answers is more than twice as long, a fifth less than half


@dataclass(frozen=True, slots=True)
class Served:
    """What the server offers: its model's name, and the most tokens of one request."""

    model: str
    context: int


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. `most` bounds its answer; with `exact` the answer is as long as that."""

    prompt_tokens: int
    most: int
    exact: bool
    stream: bool
    usage: bool  # whether a stream ends with a chunk of usage

    def output_tokens(self, rng: random.Random) -> int:
        """The length of the answer, drawn unless it is told."""
        if self.exact:
            return self.most
        return min(self.most, max(1, round(rng.lognormvariate(math.log(OUTPUT_MEDIAN), OUTPUT_SIGMA))))


def read(body: bytes, served: Served, *, chat: bool) -> Asked:
    """Reads the body of a chat completion, or of a text completion."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _wrong(f"The body is no valid JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise _wrong("The body must be a JSON object.")
    if fields.get("model") not in (None, served.model):
        raise Refused(Reason.MODEL_NOT_FOUND, f"This engine serves only the model {served.model!r}.", param="model")
    if fields.get("n") not in (None, 1):
        raise _wrong("This engine gives one answer a request.", "n")
    prompt = _messages(fields.get("messages")) if chat else _prompt(fields.get("prompt"))
    cap = _cap(fields)
    room = served.context - prompt
    if room < (cap or 1):
        text = f"The prompt has {prompt} tokens and the answer may have {cap or 1}; prompt and answer have at most {served.context}."
        raise Refused(Reason.CONTEXT_LENGTH_EXCEEDED, text)
    stream = _flag(fields, "stream")
    options = fields.get("stream_options") or {}
    if not isinstance(options, dict):
        raise _wrong("stream_options must be an object.", "stream_options")
    exact = cap is not None and _flag(fields, "ignore_eos")
    return Asked(prompt, cap or room, exact=exact, stream=stream, usage=_flag(options, "include_usage"))


def _messages(messages: object) -> int:
    """Tokens of a conversation."""
    if not isinstance(messages, list) or not messages:
        raise _wrong("messages must be a list that is not empty.", "messages")
    if not all(isinstance(message, dict) for message in messages):
        raise _wrong("Each message must be an object.", "messages")
    return _tokens(sum(_characters(message.get("content")) for message in messages))


def _characters(content: object) -> int:
    """Characters of a message: a text, or parts of which some are texts."""
    if content is None or isinstance(content, str):
        return len(content or "")
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise _wrong("content must be a text or a list of parts.", "messages")
    return sum(len(part["text"]) for part in content if isinstance(part.get("text"), str))


def _prompt(prompt: object) -> int:
    """Tokens of a text, or of a list of token numbers or of one text."""
    if isinstance(prompt, str):
        return _tokens(len(prompt))
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return len(prompt)
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        return _tokens(len(prompt[0]))
    raise _wrong("prompt must be one text, or a list of token numbers.", "prompt")


def _tokens(characters: int) -> int:
    return max(1, -(-characters // CHARS_PER_TOKEN))


def _cap(fields: dict[str, Any]) -> int | None:
    """The bound of the answer's length, under its new name or its old one."""
    for key in ("max_completion_tokens", "max_tokens"):
        value = fields.get(key)
        if value is not None:
            if type(value) is not int or value < 1:
                raise _wrong(f"{key} must be a whole number of at least 1.", key)
            return value
    return None


def _flag(fields: dict[str, Any], key: str) -> bool:
    value = fields.get(key)
    if value is not None and not isinstance(value, bool):
        raise _wrong(f"{key} must be true or false.", key)
    return bool(value)


def _wrong(text: str, param: str | None = None) -> Refused:
    return Refused(Reason.INVALID_REQUEST, text, param=param)
