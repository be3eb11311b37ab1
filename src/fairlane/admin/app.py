"""The admin port's pages as an ordinary ASGI application. All that it can change is which engines get new work.

It carries no authentication of its own: where it listens decides who may use it, and by default that is this machine only. A web
page in a browser on this machine could send orders, too, so an order that names its origin, as those of browsers do, is refused.
"""

from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import Any, Protocol

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

_TOLD_MAX = 10  # names of engines in a refusal; all of them are at /admin/engines
_DRAINED = {"drain": True, "resume": False}

Page = Callable[[Request], Awaitable[Response]]
Engines = Callable[[], list[dict[str, Any]]]


class Drain(Protocol):
    """Gives an engine no new work, or gives it work again; raises LookupError if there is none of that name."""

    def __call__(self, engine: str, *, draining: bool) -> None:
        """Does so; asked twice, the second time changes nothing."""


def make_app(
    metrics: Metrics, state: Callable[[], dict[str, Any]], ready: Callable[[], tuple[bool, str]], engines: Engines, drain: Drain
) -> Starlette:
    """The application. What it shows is asked for at each request; `ready` gives a verdict and the reason for it."""

    def healthz() -> Response:
        return _answer(200, b"ok", "text/plain; charset=utf-8")

    def readyz() -> Response:
        is_ready, reason = ready()
        return _json(200 if is_ready else 503, {"ready": is_ready, "reason": reason})

    def scrape() -> Response:
        return _answer(200, metrics.render(), METRICS_TYPE)

    def show_state() -> Response:
        return _json(200, state())

    def show_engines() -> Response:
        return _json(200, {"engines": engines()})

    pages = {"/healthz": healthz, "/readyz": readyz, "/metrics": scrape, "/admin/state": show_state, "/admin/engines": show_engines}
    orders = [
        Route(f"/admin/engines/{{engine}}/{order}", _order(engines, drain, draining=draining), methods=["POST"])
        for order, draining in _DRAINED.items()
    ]
    app = Starlette(
        routes=[*(Route(path, _page(make)) for path, make in pages.items()), *orders],
        exception_handlers={HTTPException: _refusal, Exception: _failure},
    )
    app.router.redirect_slashes = False
    return app


def _page(make: Callable[[], Response]) -> Page:
    """An endpoint on the event loop: a plain function would run in a thread, beside the state that it reads."""

    async def endpoint(_: Request) -> Response:
        return make()

    return endpoint


def _order(engines: Engines, drain: Drain, *, draining: bool) -> Page:
    """An endpoint that drains or resumes the engine in its path, and shows it."""

    async def endpoint(request: Request) -> Response:
        if "origin" in request.headers:
            return _error(403, Reason.INVALID_REQUEST, "Orders are not taken from web pages.")
        name = request.path_params["engine"]
        try:
            drain(name, draining=draining)
        except LookupError:
            names = [row["engine"] for row in engines()]
            more = f" and {len(names) - _TOLD_MAX} more" if len(names) > _TOLD_MAX else ""
            return _error(404, Reason.NOT_FOUND, f"No engine {name[:100]!r}; there are: {', '.join(names[:_TOLD_MAX])}{more}.")
        return _json(200, next(row for row in engines() if row["engine"] == name))

    return endpoint


def _answer(status: int, body: bytes, media_type: str) -> Response:
    headers = {"date": formatdate(usegmt=True), "cache-control": "no-store", "x-content-type-options": "nosniff"}
    return Response(body, status, headers, media_type)


def _json(status: int, content: dict[str, Any]) -> Response:
    return _answer(status, orjson.dumps(content, default=str, option=_STATE_OPTIONS), "application/json")


def _error(status: int, reason: Reason, text: str | None = None) -> Response:
    rule = RULES[reason]
    return _json(status, {"error": {"message": text or rule.text, "type": rule.error_type, "param": None, "code": reason}})


async def _refusal(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    answer = _error(status, _REASONS.get(status, Reason.INVALID_REQUEST))
    if isinstance(error, HTTPException):
        answer.headers.update(error.headers or {})
    return answer


async def _failure(_: Request, _error_of_ours: Exception) -> Response:
    return _error(500, Reason.INTERNAL)
