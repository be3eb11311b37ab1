"""A real gateway inside the test's process, on real sockets, whose names resolve as the test says."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvloop
import yaml

from fairlane.admin.server import AdminServer
from fairlane.gateway.app import Gateway
from fairlane.settings import parse
from fairlane.telemetry.log import Log
from tests.caller import Call, request_bytes
from tests.harness import Json
from tests.meters import Meters, until


class Inside(Meters):
    """A gateway on a loop in a thread of its own. `addresses` is what any name resolves to; an exception is raised instead."""

    def __init__(self, configuration: Json, folder: Path, *addresses: str, resolve: bool = True) -> None:
        self.addresses: Sequence[str] | Exception = addresses
        self.lookups = 0
        self._settings = parse(yaml.safe_dump({**configuration, "server": {"listen": "127.0.0.1:0", "drain_s": 5}}), "inside.yaml")
        self._log_file = folder / "inside.log"
        self._resolves = resolve
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gateway", daemon=True)
        self.gateway: Gateway
        self.port = 0

    def __enter__(self) -> Self:
        self._sink = self._log_file.open("w")
        self._thread.start()
        self._run(self._start())
        super().__init__(self._admin.address[1])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self.gateway.hurry.set()
        with contextlib.ExitStack() as stack:
            stack.callback(self._sink.close)
            stack.callback(self._loop.close)
            stack.callback(self._thread.join, 5)
            stack.callback(self._loop.call_soon_threadsafe, self._loop.stop)
            self._run(self._stop())
        events = self.events()
        if error is None:
            assert "internal_error" not in events, events

    def open(self, body: object) -> Call:
        """Send a chat request and return at once."""
        return Call(self.port, request_bytes(body))

    def engines(self) -> dict[str, dict[str, Any]]:
        """Every engine as the admin port shows it, by name."""
        return {row["engine"]: row for row in json.loads(self.admin("/admin/engines")[1])["engines"]}

    def wait_for_engines(self, *names: str) -> None:
        """Wait until exactly these are there and up."""
        until(lambda: sorted(name for name, row in self.engines().items() if row["up"]) == sorted(names), f"{names} are up")
        until(lambda: len(self.engines()) == len(names), f"only {names} are there")

    def look_up(self, *addresses: str) -> None:
        """Let names resolve to these addresses, and wait until that was noticed."""
        self.addresses = addresses
        self.wait_for_lookups(2)

    def wait_for_lookups(self, count: int) -> None:
        """Wait for so many lookups more; what follows from all but the last is done then."""
        before = self.lookups
        until(lambda: self.lookups >= before + count, f"{count} lookups")

    def events(self) -> list[str]:
        """The events of the log, in order."""
        if not self._loop.is_closed():
            self._run(self._flush())
        return [json.loads(line)["event"] for line in self._log_file.read_text().splitlines()]

    async def _start(self) -> None:
        log = Log(self._sink)
        self.gateway = gateway = Gateway(self._settings, log, self._resolve) if self._resolves else Gateway(self._settings, log)
        self._admin = AdminServer(gateway.metrics, gateway.view.state, gateway.ready, gateway.view.engines, gateway.roster.drain)
        _, self.port = await gateway.start()
        await self._admin.start("127.0.0.1", 0)

    async def _flush(self) -> None:
        self.gateway.log.flush()

    async def _stop(self) -> None:
        await self.gateway.stop()
        await self._admin.stop()

    async def _resolve(self, _host: str, _port: int) -> Sequence[str]:
        self.lookups += 1
        if isinstance(self.addresses, Exception):
            raise self.addresses
        return self.addresses

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(15)
