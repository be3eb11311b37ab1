"""The simulated engine's pages: OpenAI's API as vLLM serves it, as far as Fairlane asks for it."""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from fairlane.demo.answer import DONE, Wording
from fairlane.demo.asked import Asked, Served, read
from fairlane.demo.live import LiveEngine, Run
from fairlane.errors import RULES, Reason, Refused

BODY_BYTES_MAX = 32 * 1024 * 1024  # as much as a gateway lets through by default
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_REASONS = {404: Reason.NOT_FOUND, 405: Reason.METHOD_NOT_ALLOWED}
_EVENT_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


def make_app(engine: LiveEngine, model: str, running_max: int, seed: int) -> Starlette:
    """The application. All lengths that are drawn come from the seed, in order of the requests."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    served = Served(model, engine.context)
    began = int(time.time())

    def completion(*, chat: bool) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            asked = read(await _body(request), served, chat=chat)
            run = engine.start(asked.prompt_tokens, asked.output_tokens(rng))
            wording = Wording(chat, run.job.id, model, int(time.time()), asked.prompt_tokens, asked.usage)
            return Answering(engine, run, asked, wording)

        return endpoint

    async def models(_: Request) -> Response:
        card = {"id": model, "object": "model", "created": began, "owned_by": "fairlane"}
        return _json(200, {"object": "list", "data": [{**card, "max_model_len": engine.context, "max_num_seqs": running_max}]})

    async def health(_: Request) -> Response:
        return Response()

    async def metrics(_: Request) -> Response:
        return Response(_metrics(engine, model), media_type=METRICS_TYPE)

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", completion(chat=True), methods=["POST"]),
            Route("/v1/completions", completion(chat=False), methods=["POST"]),
            Route("/v1/models", models),
            Route("/health", health),
            Route("/metrics", metrics),
        ],
        exception_handlers={Refused: _refused, HTTPException: _no_page, ClientDisconnect: _gone},
    )
    app.router.redirect_slashes = False
    return app


class Answering(Response):
    """The answer to a request that runs: whole or as events. A client that hangs up takes its request out of the engine at once."""

    def __init__(self, engine: LiveEngine, run: Run, asked: Asked, wording: Wording) -> None:
        super().__init__()
        self._engine = engine
        self._run = run
        self._asked = asked
        self._wording = wording

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers, as an ASGI application."""
        async with self._while_listening(receive):
            if self._asked.stream:
                await self._stream(send)
            else:
                await self._whole(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _while_listening(self, receive: Receive) -> AsyncIterator[None]:
        async def listen() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self._engine.leave(self._run)

        listening = asyncio.create_task(listen())
        try:
            yield
        finally:
            listening.cancel()
            self._engine.leave(self._run)

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        tokens = await self._run.more(self._run.job.output_tokens)
        body = self._wording.whole(tokens, self._finish())
        await Response(body, media_type="application/json")(scope, receive, send)

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _EVENT_HEADERS})
        sent = 0
        while not self._run.over or sent < self._run.tokens:
            tokens = await self._run.more(sent)
            finish = self._finish() if self._run.over else None
            await send({"type": "http.response.body", "body": self._wording.chunk(sent, tokens, finish), "more_body": True})
            sent = tokens
        end = self._wording.last_usage(sent) if self._asked.usage else b""
        await send({"type": "http.response.body", "body": end + DONE, "more_body": False})

    def _finish(self) -> str:
        return "length" if self._run.tokens >= self._asked.most else "stop"


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise Refused(Reason.BODY_TOO_LARGE, f"The request body is larger than {BODY_BYTES_MAX} bytes.")
    return bytes(body)


def _metrics(engine: LiveEngine, model: str) -> str:
    """The load under vLLM's names."""
    load = engine.load()
    series = (
        ("num_requests_running", "gauge", "Requests that hold KV.", load.running),
        ("num_requests_waiting", "gauge", "Requests that hold no KV yet, or lost it.", load.waiting),
        ("kv_cache_usage_perc", "gauge", "Part of the KV cache in use; 1 is all of it.", load.kv_used_ratio),
        ("num_preemptions_total", "counter", "Times that a running request lost its KV.", load.preemptions),
    )
    labels = f'{{engine="0",model_name={json.dumps(model, ensure_ascii=False)}}}'
    return "".join(
        f"# HELP vllm:{name} {text}\n# TYPE vllm:{name} {kind}\nvllm:{name}{labels} {value}\n" for name, kind, text, value in series
    )


def _json(status: int, content: object) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def _error(refused: Refused) -> Response:
    rule = refused.rule
    error = {"message": str(refused), "type": rule.error_type, "param": refused.param, "code": refused.reason}
    return _json(rule.status, {"error": error})


async def _refused(_: Request, error: Exception) -> Response:
    return _error(error if isinstance(error, Refused) else Refused(Reason.INTERNAL))


async def _no_page(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    reason = _REASONS.get(status, Reason.INVALID_REQUEST)
    answer = _error(Refused(reason, RULES[reason].text))
    if isinstance(error, HTTPException):
        answer.headers.update(error.headers or {})
    return answer


async def _gone(_: Request, _left_early: Exception) -> Response:
    """For a client that left before its body was whole: nobody reads this."""
    return Response(status_code=400)
