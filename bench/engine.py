"""A mock engine that costs next to nothing: every answer is ready-made, and a streamed token is one event, one chunk, one write.

It speaks just enough of HTTP/1.1 and of the OpenAI API for a load of well-formed requests: chat completions with
`max_tokens` tokens, streamed or not, and `/v1/models` for a gateway's probe.
"""

import asyncio
import sys
from typing import cast

import orjson
import uvloop

TOKEN_S = 0.02  # a token each 20 ms, the pace of a mid-sized model; slow enough that chunks travel one by one
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
STREAM_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
COMMON = {"id": "chatcmpl-0123456789abcdef", "created": 1700000000, "model": "mock"}
USAGE = {"prompt_tokens": 48, "completion_tokens": 1, "total_tokens": 49}


def whole(**document: object) -> bytes:
    """A complete answer with a JSON body."""
    body = orjson.dumps(document)
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def event(*choices: object, **more: object) -> bytes:
    """One event of a chat stream, framed as one chunk; about 200 bytes, as engines send them."""
    line = b"data: " + orjson.dumps({**COMMON, "object": "chat.completion.chunk", "choices": choices, **more}) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(line), line)


CHOICE = {"index": 0, "message": {"role": "assistant", "content": " token"}, "logprobs": None, "finish_reason": "length"}
ANSWER = whole(**COMMON, object="chat.completion", choices=[CHOICE], usage=USAGE)
MODELS = whole(object="list", data=[{"id": "mock", "object": "model", "created": 1700000000, "owned_by": "bench"}])
TOKEN = event({"index": 0, "delta": {"content": " token"}, "logprobs": None, "finish_reason": None})
LAST_TOKEN = event({"index": 0, "delta": {"content": " token"}, "logprobs": None, "finish_reason": "length"})


class Connection(asyncio.Protocol):
    """One client connection; requests on it come one after the other, each with a content-length."""

    def __init__(self) -> None:
        self._loop, self._received = asyncio.get_running_loop(), b""
        self._next: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast("asyncio.Transport", transport).write

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self._next is not None:
            self._next.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[: end + 2].lower()
            _, found, rest = head.partition(b"\r\ncontent-length:")
            stop = end + 4 + (int(rest[: rest.find(b"\r\n")]) if found else 0)
            if len(self._received) < stop:
                return
            body, self._received = self._received[end + 4 : stop], self._received[stop:]
            self._write(MODELS) if head.startswith(b"get ") else self._complete(orjson.loads(body))

    def _complete(self, request: dict[str, int]) -> None:
        if request.get("stream"):
            self._write(STREAM_HEAD)
            self._token(request["max_tokens"], self._loop.time())
        else:
            self._write(ANSWER)

    def _token(self, left: int, now: float) -> None:
        if left == 1:
            self._write(LAST_TOKEN + event(usage=USAGE) + STREAM_END)
            return
        self._write(TOKEN)
        self._next = self._loop.call_at(now + TOKEN_S, self._token, left - 1, now + TOKEN_S)


async def serve(port: int) -> None:
    """Answers on loopback until the process is ended."""
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
