"""What the stub does with one request, as a value, and the bytes that this makes.

A plan is played in the order: hold, delay, head, pieces. A fault replaces the rest of the answer from the point that
it names. `split_at` and `segment` cut the finished bytes anywhere, the head and the chunk framing included.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus


class Fault(StrEnum):
    """A way in which an engine fails; those named `cut` strike after `Plan.fault_after` events were sent."""

    NONE = "none"
    RESET = "reset"  # before the head
    GARBAGE = "garbage"  # bytes that are not HTTP
    STALL = "stall"  # no head, ever
    CUT_RESET = "cut_reset"
    CUT_CLOSE = "cut_close"
    CUT_STALL = "cut_stall"


CUTS = frozenset({Fault.CUT_RESET, Fault.CUT_CLOSE, Fault.CUT_STALL})
GARBAGE = b"\x16\x03\x01\x00\xff\x00 this is not HTTP\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens that the stub claims to have used."""

    prompt: int
    output: int
    cached: int | None = None  # None: it does not tell

    def json(self) -> dict[str, object]:
        """Show it as an engine's answer does."""
        told: dict[str, object] = {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.output,
            "total_tokens": self.prompt + self.output,
        }
        return told if self.cached is None else {**told, "prompt_tokens_details": {"cached_tokens": self.cached}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one request is answered. Without `body` the answer is a completion of `texts`, streamed where asked for."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    events: tuple[bytes, ...] | None = None  # a stream's events as raw bytes, in place of those made from `texts`
    texts: tuple[str, ...] = ("Hello", ", ", "world")
    usage: Usage | None = Usage(10, 3)
    held: bool = False  # nothing is sent before the test calls `Seen.release`
    delay_s: float = 0.0  # from the release to the head
    early_head: bool = False  # a stream's head goes out alone and its first event `interval_s` later
    interval_s: float = 0.0  # between two events
    split_at: int | None = None  # the answer goes out in two parts, cut at this byte
    segment: int | None = None  # the answer goes out in parts of so many bytes
    pause_s: float = 0.0  # between two such parts
    fault: Fault = Fault.NONE
    fault_after: int = 0


def sse(payload: object) -> bytes:
    """Make one event of a stream."""
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


def pieces(plan: Plan, path: str, asked: dict[str, object]) -> list[bytes]:
    """Return the answer to the request `asked` as the parts that leave the stub one after another."""
    if plan.body is not None:
        return _cut(plan, [_head(plan, "application/json", len(plan.body)) + plan.body])
    if asked.get("stream") is True and plan.status == HTTPStatus.OK:
        return _cut(plan, _streamed(plan, path, asked))
    body = json.dumps(_whole(plan, path, asked), ensure_ascii=False).encode()
    return _cut(plan, [_head(plan, "application/json", len(body)) + body])


def stream_events(plan: Plan, path: str, asked: dict[str, object]) -> tuple[bytes, ...]:
    """Return the events of a streamed answer, `[DONE]` included."""
    if plan.events is not None:
        return plan.events
    chat = path.endswith("/chat/completions")
    kind = "chat.completion.chunk" if chat else "text_completion"
    frame: dict[str, object] = {"id": "stub-1", "object": kind, "created": 1, "model": asked.get("model")}
    parts: list[dict[str, object]] = [{"delta": {"content": text}} if chat else {"text": text} for text in plan.texts]
    events = [sse({**frame, "choices": [{"index": 0, **part, "finish_reason": None}]}) for part in parts]
    events.append(sse({**frame, "choices": [{"index": 0, **({"delta": {}} if chat else {"text": ""}), "finish_reason": "stop"}]}))
    options = asked.get("stream_options")
    if plan.usage is not None and isinstance(options, dict) and options.get("include_usage") is True:
        events.append(sse({**frame, "choices": [], "usage": plan.usage.json()}))
    return (*events, sse("[DONE]"))


def _streamed(plan: Plan, path: str, asked: dict[str, object]) -> list[bytes]:
    framed = [b"%x\r\n%b\r\n" % (len(event), event) for event in stream_events(plan, path, asked)]
    framed[-1] += b"0\r\n\r\n"
    head = _head(plan, "text/event-stream; charset=utf-8", None)
    return [head, *framed] if plan.early_head else [head + framed[0], *framed[1:]]


def _whole(plan: Plan, path: str, asked: dict[str, object]) -> dict[str, object]:
    if plan.status != HTTPStatus.OK:
        return {"error": {"message": f"The stub says {plan.status}.", "type": "stub_error", "param": None, "code": "stub"}}
    text = "".join(plan.texts)
    answer: dict[str, object] = {"id": "stub-1", "object": "chat.completion", "created": 1, "model": asked.get("model")}
    if path.endswith("/embeddings"):
        answer |= {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -0.5]}]}
    elif path.endswith("/chat/completions"):
        answer["choices"] = [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]
    else:
        answer |= {"object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}
    if plan.usage is not None:
        answer["usage"] = plan.usage.json()
    return answer


def _head(plan: Plan, content_type: str, length: int | None) -> bytes:
    given = {name.lower() for name, _ in plan.headers}
    lines = [f"HTTP/1.1 {plan.status} {_phrase(plan.status)}"]
    if "content-type" not in given:
        lines.append(f"content-type: {content_type}")
    if "content-length" not in given:
        lines.append("transfer-encoding: chunked" if length is None else f"content-length: {length}")
    lines += [f"{name}: {value}" for name, value in plan.headers]
    return "\r\n".join([*lines, "", ""]).encode()


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in set(HTTPStatus) else "Stub"


def _cut(plan: Plan, parts: Sequence[bytes]) -> list[bytes]:
    whole = b"".join(parts)
    if plan.split_at is not None:
        return [part for part in (whole[: plan.split_at], whole[plan.split_at :]) if part]
    if plan.segment is not None:
        return [whole[start : start + plan.segment] for start in range(0, len(whole), plan.segment)]
    return list(parts)
