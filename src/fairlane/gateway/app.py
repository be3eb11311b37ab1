"""The gateway put together: settings in, a running service out."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
import traceback
from collections.abc import Coroutine, Iterable, Mapping
from itertools import count
from typing import Any, cast

from fairlane import plugins
from fairlane.core.scheduler import Scheduler
from fairlane.core.values import CostWeights, PoolSpec, PriorityClass
from fairlane.errors import EngineError, Reason, Refused
from fairlane.gateway import answers, embedded
from fairlane.gateway.admission import Admission
from fairlane.gateway.calls.body import CHAT, COMPLETIONS, EMBEDDINGS
from fairlane.gateway.control.limits import Limits
from fairlane.gateway.engines import names
from fairlane.gateway.engines.roster import Roster
from fairlane.gateway.identity import Caller, Identities
from fairlane.gateway.knowledge import Knowledge
from fairlane.gateway.links import EngineLink
from fairlane.gateway.proxy import Entry, Proxy, forwarded, models, unknown_model
from fairlane.gateway.view import View
from fairlane.gateway.wire.exchange import Exchange, Refusal
from fairlane.gateway.wire.http1 import HttpServer
from fairlane.settings import Settings, class_specs, pool_specs
from fairlane.telemetry.log import PATH_MAX, Log
from fairlane.telemetry.metrics import Metrics
from fairlane.telemetry.trail import Trail

FAREWELL_S = 0.2  # for the answers of what is shed when draining ends
BACKLOG = 2048  # connections that the kernel keeps while the loop is busy
FLUSH_S = 0.25  # between two writes of the log
REQUEST_ID_MAX = 128
_ID_PREFIX = f"req_{secrets.token_hex(8)}"  # of this process: ids are unique, and as cheap as a count
_ids = count(1)
_METERED = {route.path: route for route in (CHAT, COMPLETIONS, EMBEDDINGS)}
_MODELS = "/v1/models"
_ADMIN_PAGES = ("/healthz", "/readyz", "/metrics", "/admin")


class Gateway:
    """One gateway process. `start` listens, `stop` drains."""

    def __init__(self, settings: Settings, log: Log, resolve: names.Resolve = names.resolve) -> None:
        self.settings = settings
        self.log = log
        self.loop = asyncio.get_running_loop()
        self._specs = {spec.name: spec for spec in pool_specs(settings)}
        self.scheduler = _scheduler(settings, self._specs.values())
        self.admission = Admission(self.scheduler, self.loop, yield_waste=settings.classes[-1].yield_waste)
        self.roster = Roster(settings, log, notify=self._engine_changed, run=self._task, resolve=resolve)
        self.links = self.roster.links
        self.limits = Limits(self.links, self.scheduler, log)
        classes = tuple(c.name for c in settings.classes)
        self.view = View(self)
        self.metrics = Metrics(
            classes,
            {pool: self._engines_of(pool) for pool in self._specs},
            [tenant.name for tenant in settings.tenants],
            self.view.sample,
        )
        self._models = models(settings)
        self._identities = Identities(settings)
        self._knowledge = Knowledge(settings.predictor, log)
        self._proxy = Proxy(
            self._identities,
            self._models,
            classes,
            links=self.links,
            admission=self.admission,
            metrics=self.metrics,
            estimator=self._knowledge.estimator,
            tell=self._tell,
            on_error=self._failed,
        )
        self.http = HttpServer(
            self._serve,
            render=_render,
            early=self._early,
            on_error=self._failed,
            max_body_bytes=settings.server.max_body_bytes,
            max_connections=settings.server.max_connections,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: Any = None  # an asyncio.Server, but uvloop's has a list of sockets where asyncio's has a tuple
        self.hurry = asyncio.Event()

    async def start(self) -> tuple[str, int]:
        """Listens for clients and begins to watch the engines. Returns the address."""
        self.roster.start(self._reset, self._is_done)
        self.run(self.limits.run())
        self.run(self._flush_log())
        host, port = self.settings.server.listen_address
        try:
            self._server = await self.loop.create_server(self.http.protocol, host, port, backlog=BACKLOG)
        except OSError as error:
            raise EngineError(
                f"cannot listen on {self.settings.server.listen}: {_why(error)}; choose another address with --listen or server.listen"
            ) from None
        self._knowledge.start()
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def first_probes(self) -> None:
        """Returns when every engine has been started and asked once; EngineError if an embedded one cannot be started."""
        for link in self.links.values():
            if link.settings.kind == "embedded":
                model = next(model.engine_name for model in self._models.values() if model.pool == link.pool)
                engine = await embedded.start(link, model, self.log)
                self.run(embedded.keep(link, model, engine, self.log))
        await self.roster.first_probes()

    async def stop(self) -> None:
        """Refuses new requests and lets what waits and runs end within `drain_s`, or until `hurry` is set; cuts off the rest."""
        self.admission.draining = True
        if self._server is None:  # nobody was ever listened to
            await self._end_tasks()
            return
        self._server.close()
        drain_s = self.settings.server.drain_s
        self.log.info("draining", seconds=drain_s, running=self._running(), waiting=self.scheduler.queued)
        closing = self.loop.create_task(self.http.close(drain_s + FAREWELL_S))
        hurried = self.loop.create_task(self.hurry.wait())
        await asyncio.wait((closing, hurried), timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        cut = 0
        if not closing.done():
            cut = self._running()
            self.admission.cut_all()
            await asyncio.wait((closing,), timeout=FAREWELL_S)
            self.http.cut()
        await closing
        await self._knowledge.stop()
        self.log.info("stopped", cut_off=cut)
        await self._end_tasks()

    def _running(self) -> int:
        return sum(pool.places.running for pool in self.scheduler.pools.values())

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.roster.close()
        self.log.flush()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs something for as long as the gateway lives; should it end by a mistake of ours, that is logged."""
        _ = self._task(work)

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.log.error("internal_error", error=repr(error), where=_place(error))

    def ready(self) -> tuple[bool, str]:
        """Whether requests can be served now, and why not."""
        if self.admission.draining:
            return False, "draining"
        down = [pool for pool in self._specs if not any(link.open for link in self.links.values() if link.pool == pool)]
        return (False, f"no engine of pool {down[0]} takes requests") if down else (True, "ok")

    def _serve(self, exchange: Exchange) -> None:
        """Takes one request in; whatever happens, it is answered and told of."""
        entry = cast("Entry", exchange.head.owner)
        trail = self._trail(exchange, entry.request_id)
        trail.caller = entry.caller.label
        try:
            if entry.route is not None:
                self._proxy.serve(exchange, entry.route, entry, trail)
                return
            self._list_models(exchange, entry.caller, trail)
        except Refused as refused:
            trail.refuse(refused)
            exchange.respond(*answers.refusal(refused, self._proxy.answer_lines(entry.caller, trail)))
        self._tell(trail)

    def _trail(self, exchange: Exchange, request_id: str | None) -> Trail:
        return Trail(request_id or f"{_ID_PREFIX}{next(_ids):08x}", time.monotonic(), exchange.head.path)

    def _tell(self, trail: Trail) -> None:
        total_s = time.monotonic() - trail.arrived_at
        self.metrics.request(trail, total_s)
        if self.settings.server.access_log:
            self.log.request(trail, total_s)

    def _early(self, exchange: Exchange) -> Refusal | None:
        """Refuses before the body is read: wrong path, method, key or class. Else notes what the head says."""
        head = exchange.head
        try:
            head.owner = self._enter(exchange)
        except Refused as refused:
            trail = self._trail(exchange, _request_id(head.headers))
            trail.refuse(refused)
            self._tell(trail)
            return answers.refusal(refused, _lines_before_caller(head.path, trail, refused))
        return None

    def _enter(self, exchange: Exchange) -> Entry:
        """The entry of an acceptable request, or `Refused`."""
        head = exchange.head
        methods = _methods(head.path)
        if not methods:
            raise Refused(Reason.NOT_FOUND, _where_instead(head.path))
        if head.method not in methods:
            raise Refused(Reason.METHOD_NOT_ALLOWED, f"This path does not take that method; use {methods[0]}.")
        caller = self._identities.identify(head.headers, exchange.peer)
        route = _METERED.get(head.path.rstrip("/"))
        return Entry(caller, route, self._identities.asked_rank(head.headers), _request_id(head.headers), forwarded(head.headers))

    def _list_models(self, exchange: Exchange, caller: Caller, trail: Trail) -> None:
        models = [m for m in self._models if caller.may_use(m)]
        wanted = exchange.head.path.rstrip("/").removeprefix(_MODELS).lstrip("/")
        if wanted and wanted not in models:
            raise unknown_model(wanted, caller, models)
        trail.status, trail.outcome = 200, "completed"
        body = answers.model_body(wanted) if wanted else answers.models_body(models)
        exchange.respond(200, answers.JSON + self._proxy.answer_lines(caller, trail), body)

    def _engine_changed(self, link: EngineLink) -> None:
        """An engine came, went, is full, or told its size: fractions of the pool's slots are taken anew."""
        self.scheduler.engine_report(link.pool, link.name, up=link.open, spec=link.offer)
        self.scheduler.reconfigure(link.pool, self._classes(link.pool))
        self.admission.pump(self.admission.time())

    def _reset(self, pool: str) -> None:
        """A pool has other engines than before. Nothing that waits is lost, and what runs on one that is leaving ends there."""
        links = [link for link in self.links.values() if link.pool == pool]
        self.metrics.reset_engines(pool, self._engines_of(pool))
        self.scheduler.reconfigure(pool, self._classes(pool), [link.offer for link in links if not link.leaving])
        for link in links:
            self.scheduler.engine_report(pool, link.name, up=link.open)
        self.admission.pump(self.admission.time())

    def _is_done(self, link: EngineLink) -> bool:
        """Whether nothing is left at an engine that is leaving."""
        return link.name not in self.scheduler.pools[link.pool].places.engines

    def _engines_of(self, pool: str) -> list[str]:
        return [link.name for link in self.links.values() if link.pool == pool]

    def _classes(self, pool: str) -> tuple[PriorityClass, ...]:
        slots = sum(link.spec.slots for link in self.links.values() if link.pool == pool and not link.draining and not link.leaving)
        return class_specs(self.settings, slots)

    def _failed(self, exchange: Exchange, error: Exception) -> None:
        """A mistake of ours: it is logged with its place, and the client gets a plain 500."""
        self.log.error("internal_error", path=exchange.head.path[:PATH_MAX], error=type(error).__name__, where=_place(error))

    async def _flush_log(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            self.log.flush()


def _scheduler(settings: Settings, specs: Iterable[PoolSpec]) -> Scheduler:
    return Scheduler(
        specs,
        lambda spec: plugins.policy(spec.policy, spec.classes),
        plugins.engine_limit,
        time.monotonic(),
        make_placement=plugins.placement,
        max_queued=settings.backlog.max_queued,
        weights=CostWeights(settings.scheduling.input_weight, settings.scheduling.output_weight),
    )


def _methods(path: str) -> tuple[str, ...]:
    """The methods that a path takes; none where there is no such path."""
    path = path.rstrip("/")
    if path in _METERED:
        return ("POST",)
    return ("GET", "HEAD") if path == _MODELS or path.startswith(_MODELS + "/") else ()


def _where_instead(path: str) -> str:
    """What to say of an unknown path."""
    page = next((page for page in _ADMIN_PAGES if path == page or path.startswith(page + "/")), None)
    return f"{page} is on the admin port." if page else "Unknown path; the API is under /v1."


def _lines_before_caller(path: str, trail: Trail, refused: Refused) -> bytes:
    """The headers of a refusal that came before the caller was known."""
    allow = b"allow: %b\r\n" % ", ".join(_methods(path)).encode() if refused.reason is Reason.METHOD_NOT_ALLOWED else b""
    return b"x-request-id: %b\r\n%b" % (trail.request_id.encode(), allow)


def _why(error: OSError) -> str:
    """What the system says, without the words that asyncio puts around it."""
    return os.strerror(error.errno).lower() if error.errno else str(error)


def _place(error: BaseException) -> str:
    """File and line in which an exception was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _render(_status: int, reason: Reason, message: str) -> tuple[bytes, bytes]:
    """Header lines and body of a refusal that the wire makes; the status is its own where it knows better than the table."""
    _, lines, body = answers.refusal(Refused(reason, message))
    return lines, body


def _request_id(headers: Mapping[bytes, bytes]) -> str | None:
    """The client's id if it is short and plain."""
    given = headers.get(b"x-request-id")
    if given is not None and len(given) <= REQUEST_ID_MAX and given.isascii():
        text = given.decode("ascii")
        if text.replace("-", "").replace("_", "").replace(".", "").replace(":", "").isalnum():
            return text
    return None
