"""The gateway's end of each engine: its connections, its health, and what it is told at the head of a request.

Health comes from use and from probes. An engine that cannot be reached is taken out at once, and so is one that breaks
off `FAILURES_MAX` requests in a row. A probe that answers brings it back, step by step (see `Ramp`); probes of an engine that is
out come quickly at first, so that a restart costs seconds.
"""

import asyncio
import contextlib
import functools
import ssl
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from fairlane import plugins
from fairlane.core.values import Engine
from fairlane.engines.adapter import Gauges, Report
from fairlane.engines.address import Address, parse
from fairlane.gateway.control.counts import Counts
from fairlane.gateway.control.heeding import Heeding
from fairlane.gateway.engines.lingering import Lingering
from fairlane.gateway.engines.ramp import Ramp
from fairlane.gateway.wire.upstream import ConnectFailed, EnginePool, UpstreamConnection, fetch
from fairlane.policies.limits.adaptive import STALE_S, START_SLOTS, AdaptiveLimit
from fairlane.settings import EngineSettings
from fairlane.telemetry.log import Log

FAILURES_MAX = 5  # requests broken off in a row
SPEED_GAIN = 0.1
MISSES_MAX = 2  # probes without an answer in a row that take an engine out: a busy one may miss one
PROBE_FIRST_S = 0.2  # after an engine went out; doubles up to its `probe_s`
PROBE_TIMEOUT_S = 5.0
PROBES_MISSED = 3  # without a page: what it told last is too old to grow by
PAGE_BYTES_MAX = 1 << 21  # of a page that is probed: the metrics of vLLM with 16 ranks have half of that
_FULL = frozenset({429, 503})  # statuses by which engines say that they have no room
FULL_S = 0.25  # how long an engine that refused a request gets no more than it has; then one more each time
FULL_S_MAX = 8.0  # it doubles up to this while the engine refuses and answers nothing

Notify = Callable[["EngineLink"], None]
OnGauges = Callable[["EngineLink", Gauges | None], None]


class Speed:
    """How fast an engine answers, prompts included."""

    def __init__(self) -> None:
        self._seconds_per_token = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """An answer of so many tokens took so long."""
        observed = seconds / tokens
        known = self._seconds_per_token or observed
        self._seconds_per_token = known + (observed - known) * SPEED_GAIN

    def tokens_in(self, seconds: float) -> int:
        """How many tokens an answer has after so long, as far as is known; where nothing is, as many as may be."""
        return int(seconds / self._seconds_per_token) if self._seconds_per_token else sys.maxsize


def _nothing() -> int:
    return 0


@functools.cache
def _tls() -> ssl.SSLContext:
    """Made once: reading the certificates that are trusted takes milliseconds."""
    return ssl.create_default_context()


class EngineLink:
    """One engine. `notify` is called when `up`, `open` or `offer` has changed.

    It is `draining` where an operator keeps work from it, and `leaving` where it is no longer configured.
    `limit` is the controller that finds the engine's slots, where neither the settings nor the engine tell them; `spec` is what it
    found then. `counts` is what is counted of its answers here.
    `gauges` is the last that the engine told of its load, at the time `gauges_at`; `measured` tells whether that was in the
    last round of probes. `running` and `on_gauges` are set by who counts: what the one tells is compared with the engine's own count,
    the other is called after each round, with None where nothing was told.
    """

    def __init__(
        self, pool: str, settings: EngineSettings, spec: Engine, notify: Notify, log: Log, *, tpot_slo_s: float | None = None
    ) -> None:
        self.pool = pool
        self.name = settings.name
        self.settings = settings
        self.spec = self._configured = self._told = spec
        self.offer = spec  # what the scheduler may count on: with fewer slots while the engine is full or has just come back
        self.limit: AdaptiveLimit | None = None
        self.counts = Counts()
        self._tpot_slo_s = tpot_slo_s
        self._slots_told: int | None = None  # by the engine
        self.up = False
        self.draining = self.leaving = False
        self._ramp = Ramp(self._changed)
        self.connections: EnginePool | None = None
        self._address: Address | None = None
        self._adapter = plugins.engine_adapter(settings.kind)
        self.full_status = self._adapter.full_status
        self.priority_sign = self._adapter.priority_sign
        self.step_us = round(settings.priority_step_s * 1e6)
        self.heeding = Heeding(settings.priority_step_s, self._tell_heeds, stamped=self.priority_sign != 0)
        self.gauges: Gauges | None = None
        self.gauges_at = 0.0
        self.measured = False
        self.on_gauges: OnGauges | None = None
        self._full_at: int | None = None  # requests; None: it is not known to be full
        self.full_s = FULL_S
        self._full_timer: asyncio.TimerHandle | None = None
        self._probe_soon = asyncio.Event()
        self.lingering = Lingering(self._changed, self._probe_soon.set, works_on=self._adapter.works_on)
        self.running: Callable[[], int] = _nothing  # sequences that the gateway has there
        self._notify = notify
        self._log = log
        self._heads: dict[str, bytes] = {}
        self._failures = 0
        self._misses = 0  # probes without an answer in a row
        self.speed = Speed()
        self.problem: str | None = None
        self.probed = asyncio.Event()  # set after the first round of probes

    @property
    def open(self) -> bool:
        """Whether the engine gets work."""
        return self.up and not self.draining and not self.leaving

    def connect_to(self, url: str, at: str | None = None) -> None:
        """Takes the engine's address, at the start or after the embedded engine was started anew.

        `at` is one address of the URL's host, which goes on to be the name in the Host header and for TLS.
        """
        if self.connections is not None:
            self.connections.close()
        self._address = address = parse(url)
        self.connections = EnginePool(
            at or address.host,
            address.port,
            _tls() if address.tls else None,
            connect_s=self.settings.connect_s,
            authority=address.authority,
            server_name=address.host,
        )
        self._heads.clear()
        self._probe_soon.set()

    def refused(self, status: int, others: int) -> None:
        """The engine answered a request with an error; it has so many others. One for want of room is noted."""
        if status in _FULL:
            self.counts.refused(others)
            if status == self.full_status:
                self._fill(others)

    def _fill(self, running: int) -> None:
        """Gives the engine no more than it has: it gets another when one of them ends, or after a while."""
        if self._full_timer is not None:
            self._full_timer.cancel()
        self._full_timer = asyncio.get_running_loop().call_later(self.full_s, self._has_room)
        self.full_s = min(2 * self.full_s, FULL_S_MAX)
        self._full_at = running
        self._changed()

    def _has_room(self) -> None:
        """Gives one more place, and another each such while, until all are back: all at once would be refused together again."""
        places = (self._full_at or 0) + 1
        still_full = places < self.spec.slots
        self._full_at = places if still_full else None
        self._full_timer = asyncio.get_running_loop().call_later(self.full_s, self._has_room) if still_full else None
        self._changed()

    def update(self, *, spec: Engine | None = None, draining: bool | None = None, leaving: bool | None = None) -> None:
        """Takes new numbers, keeps new work from the engine or lets it have some again; what runs goes on. None: as before."""
        self.spec = self.spec if spec is None else spec
        self.draining = self.draining if draining is None else draining
        self.leaving = self.leaving if leaving is None else leaving
        self._changed()

    def _changed(self) -> None:
        full_at, spec = self._full_at, self.spec
        slots = self._ramp.offered(spec.slots, is_open=self.open)
        slots = max(0, min(slots, spec.slots - self.lingering.slots))
        self.offer = replace(spec, slots=slots if full_at is None else min(slots, full_at))
        self._notify(self)

    def head(self, path: str) -> bytes:
        """The first lines of a request to this path, the same for each request; only for an engine with an address."""
        return self._heads[path] if path in self._heads else self._make_head(path)

    def acquire(self) -> UpstreamConnection | None:
        """A connection that was kept, or None: `connect` makes one."""
        return self.connections.acquire() if self.connections is not None else None

    async def connect(self) -> UpstreamConnection:
        """A new connection; raises `ConnectFailed`."""
        if self.connections is None:
            raise ConnectFailed("closed")
        return await self.connections.connect()

    def succeeded(self, tokens: int, seconds: float) -> None:
        """The engine gave a whole answer of so many tokens (0: a refusal) within so long, its prompt included."""
        self._failures = 0
        if tokens > 0 and seconds > 0.0:
            self.full_s = FULL_S
            self.speed.observe(tokens, seconds)

    def broke(self) -> None:
        """The engine broke off a request."""
        self._failures += 1
        if self._failures >= FAILURES_MAX:
            self.unreachable(f"broke off {self._failures} requests in a row")

    def unreachable(self, problem: str, *, gone: bool = False) -> None:
        """The engine gets no more work until a probe succeeds; one that is `gone` first has to be connected to anew."""
        self._failures = 0
        if gone:
            self.measured = False
            if self.connections is not None:
                self.connections.close()
                self.connections = None
        self._set_up(Report(healthy=False, problem=problem))
        self._probe_soon.set()

    async def watch(self) -> None:
        """Probes for ever."""
        wait = PROBE_FIRST_S
        while True:
            was_up = self.up
            await self._probe()
            wait = self._next_wait(wait, was_up=was_up)
            is_up = self.up
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._probe_soon.wait()
                    wait = PROBE_FIRST_S
            self._probe_soon.clear()
            if is_up and not self.up:
                await asyncio.sleep(PROBE_FIRST_S)

    def _next_wait(self, wait: float, *, was_up: bool) -> float:
        """Seconds until the next probe: short after a miss and after the engine went out, then longer each time."""
        if self.up:
            return PROBE_FIRST_S if self._misses or self.lingering.slots else self.settings.probe_s
        return PROBE_FIRST_S if was_up else min(2 * wait, self.settings.probe_s)

    def _make_head(self, path: str) -> bytes:
        address = self._address
        if address is None:
            raise ConnectFailed("closed")
        line = f"POST {address.base_path}{path} HTTP/1.1\r\nhost: {address.authority}\r\n".encode()
        head = self._heads[path] = line + self._key_line() + b"content-type: application/json\r\n"
        return head

    def _key_line(self) -> bytes:
        key = self.settings.api_key
        return f"authorization: Bearer {key}\r\n".encode("latin-1") if key else b""

    async def _probe(self) -> None:
        connections, address = self.connections, self._address
        if connections is None or address is None:
            return
        key, ours = self._key_line(), self.running()
        answers = [
            await fetch(connections, address.base_path + path, key, limit=PAGE_BYTES_MAX, timeout_s=PROBE_TIMEOUT_S)
            for path in self._adapter.probes
        ]
        if connections is self.connections:
            report = self._adapter.read(answers)
            self._misses = 0 if report.healthy else self._misses + 1
            if report.healthy or self._misses >= MISSES_MAX or not self.up:
                self._set_up(report)
            self._take_gauges(report.gauges)
            self.lingering.review(report.gauges, min(ours, self.running()))
            self.probed.set()

    def _take_gauges(self, gauges: Gauges | None) -> None:
        self.measured = gauges is not None
        if gauges is not None:
            self.gauges, self.gauges_at = gauges, time.monotonic()
        if self.on_gauges is not None:
            self.on_gauges(self, gauges)

    def _set_up(self, report: Report) -> None:
        """Takes a report: what is not configured is as the engine says, and as before where it says nothing now."""
        spec = self._spec_of(report) if report.healthy else self.spec
        if (report.healthy != self.up or report.problem != self.problem) and not self.leaving:
            self._tell(report, spec)
        if report.healthy and not self.up:
            self.counts.returned()
            self.heeding.restarted()
        changed = report.healthy != self.up or spec != self.spec
        self.up, self.spec, self.problem = report.healthy, spec, report.problem
        if changed:
            self._changed()

    def _spec_of(self, report: Report) -> Engine:
        configured, known = self._configured, self._told
        self._slots_told = report.slots or self._slots_told
        slots = configured.slots or self._slots_told
        context = configured.context or report.context
        kv_tokens = configured.kv_tokens or report.kv_tokens or known.kv_tokens
        self._told = told = replace(known, slots=slots or START_SLOTS, context=context, kv_tokens=kv_tokens)
        if slots:
            self.limit = None
            return told
        if self.limit is None:
            stale_after_s, pinned = max(STALE_S, PROBES_MISSED * self.settings.probe_s), configured.kv_tokens is not None
            self.limit = AdaptiveLimit(told, time.monotonic(), tpot_slo_s=self._tpot_slo_s, stale_after_s=stale_after_s, kv_pinned=pinned)
        return self.limit.renew(told)

    def _tell_heeds(self, heeds: str) -> None:
        self._log.info("engine_priority", engine=self.name, heeds=heeds)

    def _tell(self, report: Report, spec: Engine) -> None:
        level = self._log.info if report.healthy and report.problem is None else self._log.warning
        event = "engine_up" if report.healthy else "engine_down"
        level(event, engine=self.name, url=self.settings.url, slots=spec.slots, problem=report.problem)
        if report.healthy and report.slots is not None and spec.slots > report.slots:
            self._log.warning("engine_slots", engine=self.name, configured=spec.slots, reported=report.slots)
