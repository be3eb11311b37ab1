"""The tick of the controllers: once a second each is told how its engine is, and the scheduler what follows.

It has a time of its own, for how often an engine is probed says nothing about how often its load may change. An engine that is down
is left alone; its controller keeps what it has found. Engines with a number of their own are only watched: where one lets
requests wait though it has fewer than it is said to run, an operator is told.
"""

import asyncio
import time
from collections.abc import Mapping

from fairlane.core.scheduler import Scheduler
from fairlane.core.values import Engine
from fairlane.engines.adapter import Gauges
from fairlane.gateway.links import EngineLink
from fairlane.policies.limits.adaptive import CUTS, AdaptiveLimit
from fairlane.policies.limits.signals import WAITING_MAX, Signals
from fairlane.telemetry.log import Log

TICK_S = 1.0
PAGES_MIN = 2  # in a row that tell the same: one may have caught a moment


class Watched:
    """One engine: what its pages and its answers say."""

    def __init__(self, link: EngineLink, scheduler: Scheduler, log: Log) -> None:
        self.link = link
        self._scheduler = scheduler
        self._log = log
        self._pages = 0
        self._false_pages = 0  # in a row on which it ran fewer than it is said to
        self._told_blind = False
        link.on_gauges = self._take_page
        link.running = self._running

    def tick(self, now: float) -> None:
        """Tells the controller, if the engine has one, how the engine is."""
        link, limit = self.link, self.link.limit
        if limit is None or not link.up:
            return
        signals = self._signals(now)
        if signals.blind and not self._told_blind:
            self._told_blind = True
            text = "no metrics; judged by its first tokens and its refusals"
            self._log.info("engine_limit", engine=link.name, slots=link.spec.slots, why=text)
        before, was = limit.last_move, link.spec
        spec = limit.tick(signals, now)
        if limit.last_move in CUTS and (spec is not None or limit.last_move != before):
            self._note_cut(limit, before, was)
        if spec is not None:
            link.update(spec=spec)

    def _note_cut(self, limit: AdaptiveLimit, before: str, was: Engine) -> None:
        if limit.last_move == before == "stale":
            return  # it sinks on
        self.link.counts.forget()
        if limit.engine != was or limit.last_move == "stale":  # else it stays where it had come to rest
            slots, kv_ratio = limit.engine.slots, round(limit.kv_ratio, 3)
            self._log.info("engine_limit", engine=self.link.name, slots=slots, was=was.slots, kv_ratio=kv_ratio, why=limit.last_move)

    def _signals(self, now: float) -> Signals:
        link = self.link
        counts, told = link.counts, link.gauges
        blind = told is None
        gauges = told or Gauges()
        return Signals(
            running=self._running(),
            tokens=counts.tokens,
            tpot_s=counts.tpot_s(now),
            running_there=gauges.running,
            waiting=gauges.waiting,
            preemptions=gauges.preemptions,
            stale_s=0.0 if blind else max(0.0, now - link.gauges_at),
            page=self._pages,
            ttft_s=counts.ttft_s(now) if blind else None,
            calm_ttft_s=counts.calm_ttft_s() if blind else None,
            refused_at=counts.take_refused(),
            backlog=self._scheduler.pools[link.pool].queued,
        )

    def _running(self) -> int:
        state = self._scheduler.pools[self.link.pool].places.engines.get(self.link.name)
        return state.limit.running if state else 0

    def _take_page(self, link: EngineLink, gauges: Gauges | None) -> None:
        """Counts a page, and warns once for as long as the engine runs fewer requests than its slots and lets others wait."""
        if gauges is None:
            return
        self._pages += 1
        is_false = (
            link.limit is None
            and gauges.running is not None
            and gauges.waiting is not None
            and gauges.waiting > WAITING_MAX
            and gauges.running < link.spec.slots <= gauges.running + gauges.waiting
        )
        self._false_pages = self._false_pages + 1 if is_false else 0
        if self._false_pages == PAGES_MIN:
            text = "it runs fewer requests than its slots and lets others wait; set slots to what it runs, or to auto"
            self._log.warning(
                "engine_slots", engine=link.name, slots=link.spec.slots, runs=gauges.running, waiting=gauges.waiting, problem=text
            )


class Limits:
    """All engines of a gateway, by pool and name, as they come and go."""

    def __init__(self, links: Mapping[tuple[str, str], EngineLink], scheduler: Scheduler, log: Log) -> None:
        self._links = links
        self._scheduler = scheduler
        self._log = log
        self._watched: dict[EngineLink, Watched] = {}
        self._follow()

    def tick(self, now: float) -> None:
        """Each controller moves once."""
        self._follow()
        for watched in self._watched.values():
            watched.tick(now)

    async def run(self) -> None:
        """Ticks for ever."""
        while True:
            await asyncio.sleep(TICK_S)
            self.tick(time.monotonic())

    def _follow(self) -> None:
        """Watches those that have come, and forgets those that are gone."""
        known = self._watched
        self._watched = {link: known.get(link) or Watched(link, self._scheduler, self._log) for link in self._links.values()}
