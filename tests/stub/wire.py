"""The stub's side of one connection: reads requests, plays plans, notices when the peer leaves."""

import asyncio
import socket
import struct
import time
from typing import Protocol, cast

from tests.stub.plan import CUTS, GARBAGE, Fault, Plan, pieces
from tests.stub.seen import Seen

NEVER_S = 3600.0


class Watcher(Protocol):
    """What a connection tells the stub."""

    loop: asyncio.AbstractEventLoop

    def opened(self, wire: "Wire") -> int:
        """A connection came; the answer is its number."""

    def closed(self, wire: "Wire") -> None:
        """It is gone."""

    def asked(self, connection: int, head: bytes, body: bytes) -> tuple[Seen, Plan]:
        """A whole request came; the answer is how to treat it."""

    def wrong(self, what: str) -> None:
        """The peer broke HTTP."""


class Wire(asyncio.Protocol):
    """One connection. The only framing that a gateway needs towards an engine is Content-Length; any other is a fault."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._got = bytearray()
        self._seen: Seen | None = None
        self._task: asyncio.Task[None] | None = None
        self.number = 0

    @property
    def busy(self) -> bool:
        """Say whether a request runs on it."""
        return self._seen is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.number = self._watcher.opened(self)

    def eof_received(self) -> None:
        self._peer_left()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._peer_left()
        self._watcher.closed(self)

    def data_received(self, data: bytes) -> None:
        self._got += data
        if self._seen is not None:
            self._watcher.wrong(f"bytes came while a request ran: {bytes(self._got[:80])!r}")
            return
        head_end = self._got.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head, length = bytes(self._got[:head_end]), self._length(bytes(self._got[:head_end]))
        if len(self._got) < head_end + 4 + length:
            return
        body = bytes(self._got[head_end + 4 : head_end + 4 + length])
        del self._got[: head_end + 4 + length]
        self._seen, plan = self._watcher.asked(self.number, head, body)
        self._task = self._watcher.loop.create_task(self._play(self._seen, plan))
        self._task.add_done_callback(self._played)

    def _length(self, head: bytes) -> int:
        lines = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
        lengths = [value.strip() for name, _, value in lines if name.lower() == b"content-length"]
        chunked = any(name.lower() == b"transfer-encoding" for name, _, _ in lines)
        if chunked or len(lengths) > 1 or (lengths and not lengths[0].isdigit()) or (not lengths and head.startswith(b"POST")):
            self._watcher.wrong(f"unclear length: {head!r}")
            return 0
        return int(lengths[0]) if lengths else 0

    def close(self) -> None:
        """Close from the stub's side."""
        self._end()
        self._transport.close()

    def reset(self) -> None:
        """Break the connection so that the peer gets a reset, not an end of file."""
        self._end()
        raw = self._transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _end(self) -> None:
        if self._seen is not None:
            self._seen.ended_at = time.monotonic()
            self._seen = None

    def _peer_left(self) -> None:
        if self._seen is not None:
            self._seen.peer_closed_at = time.monotonic()
            self._seen = None
            if self._task is not None:
                self._task.cancel()

    def _played(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._watcher.wrong(f"the stub failed: {error!r}")
            self.close()

    async def _play(self, seen: Seen, plan: Plan) -> None:
        if plan.held:
            await seen.released.wait()
        if plan.delay_s:
            await asyncio.sleep(plan.delay_s)
        if plan.fault is Fault.STALL:
            await asyncio.sleep(NEVER_S)
        elif plan.fault is Fault.RESET:
            self.reset()
        elif plan.fault is Fault.GARBAGE:
            self._transport.write(GARBAGE)
            self.close()
        else:
            await self._answer(seen, plan)

    async def _answer(self, seen: Seen, plan: Plan) -> None:
        asked = seen.json() if seen.body[:1] == b"{" else {}
        parts = pieces(plan, seen.path, asked)
        pause = plan.pause_s if plan.segment is not None or plan.split_at is not None else plan.interval_s
        for index, part in enumerate(parts):
            if plan.fault in CUTS and index == plan.fault_after:
                await self._cut(plan.fault)
                return
            if index:
                await asyncio.sleep(pause)
            if index == len(parts) - 1:  # the peer may answer the last byte before this task runs again
                self._end()
            seen.sent_at.append(time.monotonic())
            self._transport.write(part)
        if seen.header("connection") == "close":
            self._transport.close()

    async def _cut(self, fault: Fault) -> None:
        if fault is Fault.CUT_STALL:
            await asyncio.sleep(NEVER_S)
        elif fault is Fault.CUT_RESET:
            self.reset()
        else:
            self.close()
