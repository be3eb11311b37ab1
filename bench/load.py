"""The load: chat completions from one event loop, every answer checked before it counts."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import httptools
import orjson

PROMPT = "Tell me about the weather. " * 8


def request(port: int, tokens: int) -> bytes:
    """A chat request of 216 characters; for more than one token it is streamed, with the usage as the last event."""
    body: dict[str, object] = {"model": "mock", "max_tokens": tokens, "messages": [{"role": "user", "content": PROMPT}]}
    if tokens > 1:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    data = orjson.dumps(body)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (port, len(data)) + data


@dataclass
class Tally:
    """How long each right answer took, and how many answers were wrong or did not come."""

    right_s: list[float] = field(default_factory=list)
    wrong: int = 0


class Client(asyncio.Protocol):
    """One connection: sends its request again after each answer, as long as `more()` says so, then resolves `done`."""

    def __init__(self, message: bytes, tokens: int, tally: Tally, more: Callable[[], bool]) -> None:
        self._message, self._tokens, self._tally, self._more = message, tokens, tally, more
        self._loop, self._waiting = asyncio.get_running_loop(), False
        self.done = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def _send(self) -> None:
        self._body: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)
        self._sent_at, self._waiting = time.perf_counter(), True
        self._transport.write(self._message)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        self._waiting = False
        if self._is_right(b"".join(self._body)):
            self._tally.right_s.append(time.perf_counter() - self._sent_at)
        else:
            self._tally.wrong += 1
        if self._more():
            self._loop.call_soon(self._send)
        else:
            self._transport.close()

    def _is_right(self, body: bytes) -> bool:
        events, ending = (0, b'"total_tokens":49}}') if self._tokens == 1 else (self._tokens + 2, b"data: [DONE]\n\n")
        return self._parser.get_status_code() == 200 and body.count(b"data: ") == events and body.endswith(ending)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._tally.wrong += self._waiting
        self.done.set_result(None)


async def run(port: int, connections: int, tokens: int, seconds: float) -> Tally:
    """Keeps the connections busy for so long; each ends with the answer it has then begun to wait for.

    Their starts are spread over one interval between two tokens, lest chunks of all streams travel in step.
    """
    until = time.perf_counter() + seconds
    tally, message = Tally(), request(port, tokens)

    async def one(place: int) -> None:
        await asyncio.sleep(0.02 * place / connections)
        client = Client(message, tokens, tally, lambda: time.perf_counter() < until)
        await asyncio.get_running_loop().create_connection(lambda: client, "127.0.0.1", port)
        await client.done

    await asyncio.wait_for(asyncio.gather(*(one(i) for i in range(connections))), seconds + 30)
    return tally
