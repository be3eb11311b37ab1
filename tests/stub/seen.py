"""What the stub noticed about one request. All times are of `time.monotonic`, which the test shares."""

import asyncio
import json
import time
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Seen:
    """One request as it reached the stub, from its last byte to its end."""

    number: int
    connection: int
    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    loop: asyncio.AbstractEventLoop
    arrived_at: float = field(default_factory=time.monotonic)
    sent_at: list[float] = field(default_factory=list)  # one time for each piece that was written
    ended_at: float | None = None  # the last piece was written, or the stub broke off on purpose
    peer_closed_at: float | None = None  # the peer left before that
    released: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def running(self) -> bool:
        """Say whether the stub still works on it."""
        return self.ended_at is None and self.peer_closed_at is None

    @property
    def finished_at(self) -> float:
        """Return when it ended, in whichever way; only for requests that did."""
        ends = [moment for moment in (self.ended_at, self.peer_closed_at) if moment is not None]
        assert ends, "the request still runs"
        return min(ends)

    @property
    def text(self) -> str:
        """Return the content of the last message, by which tests tell requests apart."""
        content = self.json()["messages"][-1]["content"]
        assert isinstance(content, str)
        return content

    def json(self) -> dict:  # type: ignore[type-arg]
        """Return the body as JSON."""
        parsed = json.loads(self.body)
        assert isinstance(parsed, dict)
        return parsed

    def header(self, name: str) -> str | None:
        """Return the value of a header that came at most once."""
        values = [value for key, value in self.headers if key == name.lower()]
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None

    def release(self) -> None:
        """Let a held request go on; safe from any thread."""
        self.loop.call_soon_threadsafe(self.released.set)
