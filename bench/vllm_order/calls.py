"""One completion over HTTP, on a connection of its own, and when its first token and its end came."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import httptools
import orjson

MODEL = "tiny"


@dataclass(frozen=True)
class Ask:
    """A completion of exactly `tokens` tokens, or of at most so many where `stops` names tokens that end it."""

    name: str  # travels as X-Request-Id, so that gateway and engine tell of the same request
    cls: str  # and the key of the tenant that has it
    prompt: int  # tokens
    tokens: int
    streamed: bool = False
    stops: int = 0  # how many of the vocabulary's tokens end the answer

    def message(self, port: int) -> bytes:
        """The bytes to send."""
        body: dict[str, object] = {"model": MODEL, "prompt": prompt(self.name, self.prompt), "max_tokens": self.tokens, "ignore_eos": True}
        body |= {"stop_token_ids": list(range(1, 1 + self.stops))} if self.stops else {}
        body |= {"stream": True, "stream_options": {"include_usage": True}} if self.streamed else {}
        data = orjson.dumps(body)
        lines = (
            "POST /v1/completions HTTP/1.1",
            f"host: 127.0.0.1:{port}",
            "content-type: application/json",
            f"content-length: {len(data)}",
            f"x-request-id: {self.name}",
            f"authorization: Bearer {self.cls}",
        )
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def prompt(name: str, tokens: int) -> str:
    """A text of so many tokens of the tiny model, one a character; it begins with a name, so that no two have a prefix in common."""
    return f"{name} ".ljust(tokens, ".")[:tokens]


@dataclass
class Answer:
    """What came of a request; times are of `time.monotonic`."""

    ask: Ask
    sent_at: float = 0.0
    first_at: float | None = None  # first byte of the body: of a stream, its first token
    ended_at: float | None = None
    status: int = 0
    usage: Mapping[str, int] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether the answer came to its end."""
        return self.status == 200 and self.tokens > 0

    @property
    def tokens(self) -> int:
        """Output tokens, by the engine's own count."""
        return self.usage.get("completion_tokens", 0)

    @property
    def ttft_s(self) -> float | None:
        """From sending to the first token."""
        return None if self.first_at is None or self.status != 200 else self.first_at - self.sent_at

    @property
    def tpot_s(self) -> float:
        """Seconds for each token after the first; only of a whole answer."""
        return ((self.ended_at or 0.0) - (self.first_at or 0.0)) / max(1, self.tokens - 1)


class Call(asyncio.Protocol):
    """Sends the request when the connection is there; `done` is resolved at the answer's end, or when the connection is lost."""

    def __init__(self, message: bytes, answer: Answer) -> None:
        self._message, self._answer, self._body = message, answer, bytearray()
        self._parser = httptools.HttpResponseParser(self)
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._message)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        if self._answer.first_at is None:
            self._answer.first_at = time.monotonic()
        self._body += data

    def on_message_complete(self) -> None:
        self._answer.ended_at = time.monotonic()
        self._answer.status = self._parser.get_status_code()
        self._answer.usage = usage(bytes(self._body))
        if not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if not self.done.done():
            self.done.set_result(None)


async def ask(port: int, asked: Ask) -> Answer:
    """The answer. One that is cancelled closes its connection, whereupon its work is stopped."""
    answer = Answer(asked, sent_at=time.monotonic())
    loop = asyncio.get_running_loop()
    try:
        transport, call = await loop.create_connection(lambda: Call(asked.message(port), answer), "127.0.0.1", port)
    except OSError:
        return answer
    try:
        await call.done
    finally:
        transport.abort()
    return answer


def usage(body: bytes) -> dict[str, int]:
    """The usage that an answer tells, in its last event or in its one document; empty where it broke off."""
    texts = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
    if texts and texts[-1].strip() != b"[DONE]":
        return {}
    for text in reversed(texts[:-1] or [body]):
        try:
            found = orjson.loads(text).get("usage")
        except (ValueError, AttributeError):
            return {}
        if found:
            return {key: value for key, value in found.items() if isinstance(value, int)}
    return {}
