"""A caller on a raw socket: one connection a request, written at once, read or dropped when the test says so.

Answers are taken apart by the standard library's HTTP client, which knows nothing of this project, and every request
asks for `connection: close`, so that the end of the connection shows whether the answer was whole.
"""

import http.client
import io
import json
import selectors
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, cast

CHAT = "/v1/chat/completions"


def chat(text: str = "hi", **fields: object) -> dict[str, object]:
    """Make the body of a chat completion for the model `m`."""
    return {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 8, **fields}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, and when. `whole` is false where the client can tell that the transfer broke."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    whole: bool
    sent_at: float
    first_byte_at: float
    ended_at: float

    def header(self, name: str) -> str | None:
        """Return the value of a header that came at most once."""
        values = [value for key, value in self.headers if key == name.lower()]
        assert len(values) <= 1, f"{name} came {len(values)} times: {values}"
        return values[0] if values else None

    def json(self) -> dict:  # type: ignore[type-arg]
        """Return the body as a JSON object."""
        parsed = json.loads(self.body)
        assert isinstance(parsed, dict)
        return parsed

    @property
    def code(self) -> str:
        """Return the code of an error answer, whose shape is checked on the way."""
        error = self.json()["error"]
        assert {"message", "type", "param", "code"} <= error.keys(), error
        assert isinstance(error["message"], str)
        assert error["message"]
        return str(error["code"])


class Call:
    """One request under way."""

    def __init__(self, port: int, request: bytes) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent_at = time.monotonic()
        self._socket.sendall(request)
        self.raw = bytearray()
        self.arrivals: list[tuple[float, int]] = []  # when, and how many bytes there were then
        self.ended_at: float | None = None

    def fileno(self) -> int:
        """Return the socket's number, for selectors."""
        return self._socket.fileno()

    def send(self, data: bytes) -> None:
        """Send more of the request."""
        self._socket.sendall(data)

    def read(self, timeout_s: float = 10) -> bool:
        """Take what is there, waiting for it at most so long; false where nothing came."""
        self._socket.settimeout(timeout_s)
        try:
            data = self._socket.recv(1 << 18)
        except TimeoutError:
            return False
        except ConnectionResetError:
            data = b""
        now = time.monotonic()
        self.raw += data
        self.arrivals.append((now, len(self.raw)))
        if not data:
            self.ended_at = now
            self._socket.close()
        return True

    def read_events(self, count: int) -> None:
        """Read until so many events of a stream have begun."""
        while self.raw.count(b"data: ") < count:
            assert self.read(), f"no event in 10 s after {bytes(self.raw)!r}"
            assert self.ended_at is None, f"the stream ended early: {bytes(self.raw)!r}"

    def finish(self, timeout_s: float = 20) -> Answer:
        """Read to the end."""
        return finish([self], timeout_s)[0]

    def close(self) -> None:
        """Leave, as a client that was closed."""
        self._socket.close()

    def reset(self) -> None:
        """Leave with a reset, as a client that was killed."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def answer(self) -> Answer:
        """Take the bytes apart, once the connection has ended."""
        assert self.ended_at is not None
        assert self.raw, "the connection ended without an answer"
        stream = _Replay(bytes(self.raw))
        response = http.client.HTTPResponse(cast("socket.socket", stream))
        response.begin()
        status, headers = response.status, tuple((name.lower(), value) for name, value in response.getheaders())
        framed = response.chunked or response.length is not None
        try:
            body, whole = response.read(), framed
        except http.client.IncompleteRead as error:
            body, whole = error.partial, False
        rest = stream.read() if whole else b""
        assert not rest, f"bytes after the answer: {rest!r}"
        return Answer(status, headers, body, whole, self.sent_at, self.arrivals[0][0], self.ended_at)


def finish(calls: Sequence[Call], timeout_s: float = 20) -> list[Answer]:
    """Read all calls to their ends at once, so that each one's times are true."""
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for call in calls:
            if call.ended_at is None:
                selector.register(call, selectors.EVENT_READ, call)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            assert ready, f"{len(selector.get_map())} of {len(calls)} requests have no end after {timeout_s} s"
            for key, _ in ready:
                call = cast("Call", key.data)
                call.read()
                if call.ended_at is not None:
                    selector.unregister(call)
    return [call.answer() for call in calls]


def request_bytes(
    body: object, *, path: str = CHAT, key: str | None = None, headers: Sequence[tuple[str, str]] = (), method: str = "POST"
) -> bytes:
    """Write a request out; a body that is not bytes is sent as JSON."""
    payload = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    lines = [f"{method} {path} HTTP/1.1", "host: fairlane.test", "connection: close", "content-type: application/json"]
    lines += [f"content-length: {len(payload)}", *([f"authorization: Bearer {key}"] if key else [])]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, "", ""]).encode() + payload


class _Replay(io.BytesIO):
    """A socket to read from, for a response that has arrived; it stays open, so that what was left over can be seen."""

    def makefile(self, mode: str) -> Self:
        """Give the bytes."""
        assert mode == "rb"
        return self

    def close(self) -> None:
        """Stay open."""
