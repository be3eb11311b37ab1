"""The admin port's pages as an ordinary ASGI application. It reads and never changes anything.

It carries no authentication of its own: where it listens decides who may read it, and by default that is this machine only.
"""

from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fairlane.errors import RULES, Reason
from fairlane.telemetry.metrics import Metrics

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STATE_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
_REASONS = {404: Reason.NOT_FOUND, 405: Reason.METHOD_NOT_ALLOWED}

Page = Callable[[Request], Awaitable[Response]]


def make_app(metrics: Metrics, state: Callable[[], dict[str, Any]], ready: Callable[[], tuple[bool, str]]) -> Starlette:
    """The application. `state` and `ready` are asked at each request; `ready` gives a verdict and the reason for it."""

    def healthz() -> Response:
        return _answer(200, b"ok", "text/plain; charset=utf-8")

    def readyz() -> Response:
        is_ready, reason = ready()
        return _json(200 if is_ready else 503, {"ready": is_ready, "reason": reason})

    def scrape() -> Response:
        return _answer(200, metrics.render(), METRICS_TYPE)

    def show_state() -> Response:
        return _json(200, state())

    pages = {"/healthz": healthz, "/readyz": readyz, "/metrics": scrape, "/admin/state": show_state}
    app = Starlette(
        routes=[Route(path, _page(make)) for path, make in pages.items()],
        exception_handlers={HTTPException: _refusal, Exception: _failure},
    )
    app.router.redirect_slashes = False
    return app


def _page(make: Callable[[], Response]) -> Page:
    """An endpoint on the event loop: a plain function would run in a thread, beside the state that it reads."""

    async def endpoint(_: Request) -> Response:
        return make()

    return endpoint


def _answer(status: int, body: bytes, media_type: str) -> Response:
    headers = {"date": formatdate(usegmt=True), "cache-control": "no-store", "x-content-type-options": "nosniff"}
    return Response(body, status, headers, media_type)


def _json(status: int, content: dict[str, Any]) -> Response:
    return _answer(status, orjson.dumps(content, default=str, option=_STATE_OPTIONS), "application/json")


def _error(status: int, reason: Reason) -> Response:
    rule = RULES[reason]
    return _json(status, {"error": {"message": rule.text, "type": rule.error_type, "param": None, "code": reason}})


async def _refusal(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    answer = _error(status, _REASONS.get(status, Reason.INVALID_REQUEST))
    if isinstance(error, HTTPException):
        answer.headers.update(error.headers or {})
    return answer


async def _failure(_: Request, _error_of_ours: Exception) -> Response:
    return _error(500, Reason.INTERNAL)
