"""The stub itself: a listening socket and an event loop in a thread of its own.

The test's thread scripts it and reads its lists; every change of state is made by the stub's thread. Requests to the
paths that a gateway probes are answered at once and recorded apart.
"""

import asyncio
import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Self, TypeVar

from fairlane.engines.address import place
from tests.ports import own_port
from tests.stub.plan import Plan
from tests.stub.seen import Seen
from tests.stub.wire import Wire

Result = TypeVar("Result")
Script = Callable[[Seen], Plan]


class Stub:
    """An upstream that does as the test says. `plan` holds for every request; those in `script` are used up first."""

    def __init__(
        self, plan: Plan | Script | None = None, *, models: tuple[str, ...] = ("m",), slots: int = 4, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.plan: Plan | Script = plan or Plan()
        self.script: deque[Plan] = deque()
        self.models = models
        self.slots = slots
        self.probe_status = 200  # what /health, /props and /v1/models answer; 0: they are held for ever
        self.pages: dict[str, bytes] = {}  # more pages that a gateway may probe
        self.requests: list[Seen] = []
        self.probes: list[Seen] = []
        self.faults: list[str] = []  # where the peer broke HTTP or the stub itself failed; a test ends with none
        self.loop = asyncio.new_event_loop()
        self._wires: set[Wire] = set()
        self._connections = 0
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self.loop.run_forever, name="stub", daemon=True)
        self.host = host
        self.port = port or own_port()
        self.loop.set_exception_handler(lambda _, context: self.faults.append(repr(context)))

    def __enter__(self) -> Self:
        self._thread.start()
        self.accept()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._run(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        self.loop.close()

    @property
    def url(self) -> str:
        """Return the address that goes into a gateway's settings."""
        return f"http://{place(self.host, self.port)}"

    @property
    def running(self) -> list[Seen]:
        """Return the requests that the stub works on."""
        return [seen for seen in list(self.requests) if seen.running]

    @property
    def connections(self) -> int:
        """Return how many connections of any kind are open."""
        return len(self._wires)

    def release_all(self) -> None:
        """Let every held request go on."""
        for seen in self.running:
            seen.release()

    def refuse(self) -> None:
        """Stop listening and close the connections that carry no request, as a server that is gone."""
        self._run(self._refuse())

    def accept(self) -> None:
        """Listen, on the port that was used before."""
        self._run(self._listen())

    def reset_running(self) -> None:
        """Reset every connection that carries a request."""
        self._run(self._reset_running())

    # What the connections tell, in the stub's thread.

    def opened(self, wire: Wire) -> int:
        """Count a connection."""
        self._wires.add(wire)
        self._connections += 1
        return self._connections

    def closed(self, wire: Wire) -> None:
        """Forget a connection."""
        self._wires.discard(wire)

    def asked(self, connection: int, head: bytes, body: bytes) -> tuple[Seen, Plan]:
        """Record a request and choose its plan."""
        line, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = line.split(" ")
        parted = [each.partition(":") for each in lines]
        headers = [(name.lower(), value.strip()) for name, _, value in parted]
        probe = method == "GET"
        seen = Seen(len(self.requests), connection, method, path, headers, body, self.loop)
        (self.probes if probe else self.requests).append(seen)
        if probe:
            return seen, self._probed(path)
        if self.script:
            return seen, self.script.popleft()
        return seen, self.plan if isinstance(self.plan, Plan) else self.plan(seen)

    def wrong(self, what: str) -> None:
        """Note that the peer broke HTTP."""
        self.faults.append(what)

    def _probed(self, path: str) -> Plan:
        answers: dict[str, object] = {
            "/v1/models": {"object": "list", "data": [{"id": model, "object": "model", "owned_by": "stub"} for model in self.models]},
            "/health": {"status": "ok"},
            "/props": {"total_slots": self.slots, "default_generation_settings": {"n_ctx": 4096}},
        }
        if self.probe_status == 0:
            return Plan(held=True)
        if path in self.pages:
            return Plan(status=self.probe_status, body=self.pages[path])
        if path not in answers:
            return Plan(status=404)
        return Plan(status=self.probe_status, body=json.dumps(answers[path]).encode())

    def _run(self, work: Coroutine[None, None, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(5)

    async def _listen(self) -> None:
        listener = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self.host, self.port))
        self.port = listener.getsockname()[1]
        self._server = await self.loop.create_server(lambda: Wire(self), sock=listener, backlog=1024)

    async def _refuse(self) -> None:
        await self._stop_listening()
        for wire in [wire for wire in self._wires if not wire.busy]:
            wire.close()

    async def _reset_running(self) -> None:
        for wire in [wire for wire in self._wires if wire.busy]:
            wire.reset()

    async def _stop_listening(self) -> None:
        """Close the server once whatever it has just accepted has its wire: asyncio loses a connection whose server is closed by then."""
        assert self._server is not None
        for listening in self._server.sockets:
            self.loop.remove_reader(listening.fileno())
        for _ in range(3):
            await asyncio.sleep(0)
        self._server.close()
        self._server = None

    async def _stop(self) -> None:
        if self._server is not None:
            await self._stop_listening()
        for wire in list(self._wires):
            wire.reset()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
