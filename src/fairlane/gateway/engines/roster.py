"""All engines of a gateway: those that the settings name, and those at the addresses of names, as they come and go.

An engine that has come is a link, is known to the scheduler, and is watched. One whose address is gone gets no new work, and is
dropped when the scheduler has nothing running there any more, which is looked at with each lookup. Until then everything about it
is as before, so what runs there, connects or goes back to wait needs no care. Should its address come back meanwhile, it stays.

One that an operator drains differs in that it is never dropped: it is probed on, and gets work again when it is resumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fairlane.engines.address import parse
from fairlane.gateway.engines.names import ADDRESSES_MAX, Addresses, Resolve
from fairlane.gateway.links import EngineLink, Notify
from fairlane.settings import EngineSettings, PoolSettings, Settings, engine_spec
from fairlane.telemetry.log import Log

Run = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class UnknownEngineError(LookupError):
    """There is no engine of that name."""


class Name:
    """One entry of the settings that stands for the engines at all addresses of a name."""

    def __init__(self, pool: PoolSettings, settings: EngineSettings) -> None:
        self.pool = pool
        self.settings = settings
        self.addresses = Addresses()
        self.links: dict[str, EngineLink] = {}  # by address; also those that run down
        self.problem: str | None = None  # of the last lookup
        self.looked_up = asyncio.Event()  # once at least


class Roster:
    """The links by pool and name of the engine, in `links`, which is the same object for ever.

    `notify` is told of each link that has changed, `reset` of each pool that has other links than before. `is_done` tells of an
    engine that runs down whether nothing is left there.
    """

    def __init__(self, settings: Settings, log: Log, *, notify: Notify, run: Run, resolve: Resolve) -> None:
        self.links: dict[tuple[str, str], EngineLink] = {}
        self._names: list[Name] = []
        self._drained: set[str] = set()  # by order; such an engine may go and come back
        self._watching: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._following: list[asyncio.Task[None]] = []
        self._log = log
        self._notify = notify
        self._run = run
        self._resolve = resolve
        for pool in settings.pools:
            for engine in pool.engines:
                if engine.looked_up:
                    self._names.append(Name(pool, engine))
                else:
                    self._add(pool, engine)

    def start(self, reset: Callable[[str], None], is_done: Callable[[EngineLink], bool]) -> None:
        """Connects and probes the engines, and follows the names, from now on."""
        for link in self.links.values():
            if link.settings.url is not None:
                link.connect_to(link.settings.url)
            self._watch(link)
        self._following = [self._run(self._follow(name, reset, is_done)) for name in self._names]

    async def first_probes(self) -> None:
        """Returns when every name has been looked up and every engine been asked once."""
        await asyncio.gather(*(name.looked_up.wait() for name in self._names))
        await asyncio.gather(*(link.probed.wait() for link in self.links.values()))

    def drain(self, engine: str, *, draining: bool) -> None:
        """Gives an engine no new work, or gives it work again; UnknownEngineError if there is none of that name."""
        link = next((link for link in self.links.values() if link.name == engine), None)
        if link is None:
            raise UnknownEngineError(engine)
        (self._drained.add if draining else self._drained.discard)(engine)
        if link.draining is not draining:
            self._log.info("engine_draining" if draining else "engine_resumed", engine=engine)
            link.update(draining=draining)

    def close(self) -> None:
        """Closes all connections."""
        for link in self.links.values():
            if link.connections is not None:
                link.connections.close()

    def _add(self, pool: PoolSettings, engine: EngineSettings) -> EngineLink:
        link = EngineLink(pool.name, engine, engine_spec(pool, engine), self._notify, self._log, tpot_slo_s=pool.tpot_slo_s)
        self.links[pool.name, engine.name] = link
        if engine.name in self._drained:
            link.update(draining=True)
        return link

    def _watch(self, link: EngineLink) -> None:
        self._watching[link.pool, link.name] = self._run(link.watch())

    async def _follow(self, name: Name, reset: Callable[[str], None], is_done: Callable[[EngineLink], bool]) -> None:
        """Looks a name up for ever, and does what follows."""
        place = parse(name.settings.url or "")
        while True:
            try:
                answer = await self._resolve(place.host, place.port)
            except (OSError, UnicodeError) as error:
                self._failed(name, str(error))
            else:
                self._take(name, answer)
            if self._arrange(name):
                reset(name.pool.name)
            if self._drop_done(name, is_done):
                reset(name.pool.name)
            name.looked_up.set()
            await asyncio.sleep(name.settings.lookup_s)

    def _failed(self, name: Name, problem: str) -> None:
        """A lookup failed: all stays as it is, which is said once."""
        if name.problem is None:
            self._log.warning("engine_lookup_failed", engine=name.settings.name, url=name.settings.url, problem=problem)
        name.problem = problem

    def _take(self, name: Name, answer: Sequence[str]) -> None:
        if name.problem is not None:
            self._log.info("engine_lookup_works", engine=name.settings.name, url=name.settings.url)
            name.problem = None
        addresses, dropped = name.addresses, name.addresses.dropped
        addresses.take(answer)
        if addresses.dropped and not dropped:
            self._log.warning("engine_addresses", engine=name.settings.name, used=ADDRESSES_MAX, ignored=addresses.dropped)

    def _arrange(self, name: Name) -> bool:
        """Makes an engine of each address that is new, and lets those run down whose address is gone; whether there were any."""
        changed = False
        for address, link in name.links.items():
            leaving = address not in name.addresses.now
            if link.leaving is not leaving:
                changed = True
                self._log.info("engine_leaving" if leaving else "engine_stays", engine=link.name)
                link.update(leaving=leaving)
        for address in name.addresses.now:
            if address not in name.links:
                changed = True
                settings = name.settings.model_copy(update={"name": f"{name.settings.name}@{address}"})
                link = name.links[address] = self._add(name.pool, settings)
                link.connect_to(settings.url or "", address)
                self._watch(link)
        return changed

    def _drop_done(self, name: Name, is_done: Callable[[EngineLink], bool]) -> bool:
        """Forgets the engines that have run down; whether there were any."""
        done = [(address, link) for address, link in name.links.items() if link.leaving and is_done(link)]
        for address, link in done:
            place = link.pool, link.name
            self._watching.pop(place).cancel()
            link.unreachable("its address is gone", gone=True)
            link.probed.set()
            del name.links[address], self.links[place]
            self._log.info("engine_gone", engine=link.name)
        return bool(done)
