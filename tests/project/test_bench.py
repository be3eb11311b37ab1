"""The benchmark measures what it says: real answers, real CPU time, and it notices when an answer is wrong."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from bench import engine, load
from bench.machine import cpu_s

ROOT = Path(__file__).parents[2]


class Recorded(engine.Connection):
    """The mock engine, with its transports at hand so that they can be closed."""

    made: ClassVar[list[asyncio.BaseTransport]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made.append(transport)
        super().connection_made(transport)


class CutShort(Recorded):
    """An engine that forgets one token of each stream."""

    def _token(self, left: int, now: float) -> None:
        super()._token(max(1, left - 1), now)


async def load_on(protocol: type[Recorded]) -> load.Tally:
    """What four streams of three tokens from such an engine come to."""
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    tally = await load.run(server.sockets[0].getsockname()[1], 4, 3, 0)
    server.close()
    for transport in protocol.made:
        transport.close()
    await asyncio.sleep(0)
    return tally


def test_a_run_gives_figures_for_both_loads() -> None:
    """One short round on the mock engine alone prints positive figures and no wrong answer."""
    command = [sys.executable, "-m", "bench.run", "--rounds", "1", "--seconds", "0.3", "--tokens", "5", "--only", "direct", "--json"]
    printed = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60).stdout)
    (figures,) = printed["peers"]["direct"]
    assert figures["wrong"] == 0
    assert figures["request_us"] > 0
    assert figures["thousands_per_s"] > 0.1


def test_right_answers_are_counted_once_each() -> None:
    """Every stream that comes whole is one right answer."""
    tally = asyncio.run(load_on(Recorded))
    assert (len(tally.right_s), tally.wrong) == (4, 0)


def test_a_missing_token_is_wrong() -> None:
    """A stream that ends well but lacks a token does not count as right."""
    tally = asyncio.run(load_on(CutShort))
    assert (len(tally.right_s), tally.wrong) == (0, 4)


def test_cpu_time_includes_descendants() -> None:
    """The work of a child process is in its parent's figure."""
    spin = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    parent = subprocess.Popen([sys.executable, "-c", spin], start_new_session=True)
    try:
        while cpu_s(parent.pid) < 0.3:
            assert parent.poll() is None
    finally:
        os.killpg(parent.pid, 9)
        parent.wait()
