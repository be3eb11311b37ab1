"""What the engine says: filler words, one a token, in the shapes of OpenAI's API."""

from dataclasses import dataclass
from typing import Any

import orjson

FILLER = (
    "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore et dolore magna aliqua "
    "ut enim ad minim veniam quis nostrud exercitation ullamco laboris nisi ut aliquip ex ea commodo consequat"
)
WORDS = FILLER.split()
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Wording:
    """The answer to one request. `begin` and `end` count its tokens."""

    chat: bool
    number: int
    model: str
    created: int
    prompt_tokens: int
    usage: bool  # whether it was asked for in a stream, where each chunk names it then

    def chunk(self, begin: int, end: int, finish: str | None) -> bytes:
        """An event with some tokens; the first says who speaks, the last why it stops."""
        said = _text(begin, end)
        role = {} if begin else {"role": "assistant"}
        part = {"delta": {**role, "content": said}} if self.chat else {"text": said}
        more = {"usage": None} if self.usage else {}
        return self._event({"choices": [{"index": 0, **part, "logprobs": None, "finish_reason": finish}], **more})

    def last_usage(self, tokens: int) -> bytes:
        """The event that tells the usage of a stream."""
        return self._event({"choices": [], "usage": self._usage(tokens)})

    def whole(self, tokens: int, finish: str) -> bytes:
        """The answer in one piece."""
        said = _text(0, tokens)
        part = {"message": {"role": "assistant", "content": said}} if self.chat else {"text": said}
        choice = {"index": 0, **part, "logprobs": None, "finish_reason": finish}
        return orjson.dumps({**self._head(streamed=False), "choices": [choice], "usage": self._usage(tokens)})

    def _event(self, fields: dict[str, Any]) -> bytes:
        return b"data: " + orjson.dumps({**self._head(streamed=True), **fields}) + b"\n\n"

    def _head(self, *, streamed: bool) -> dict[str, Any]:
        prefix, kind = ("chatcmpl", "chat.completion") if self.chat else ("cmpl", "text_completion")
        kind += ".chunk" if self.chat and streamed else ""
        return {"id": f"{prefix}-{self.number}", "object": kind, "created": self.created, "model": self.model}

    def _usage(self, tokens: int) -> dict[str, int]:
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": tokens, "total_tokens": self.prompt_tokens + tokens}


def _text(begin: int, end: int) -> str:
    """Words with a space before each but the first of an answer."""
    return "".join(("" if n == 0 else " ") + WORDS[n % len(WORDS)] for n in range(begin, end))
