"""Ports for the servers of tests, which no other process is given meanwhile.

A port that the kernel has chosen is free again between its choice and the server's start, and while a server is stopped; any
connection that is opened then may take it. So the ports are those that the kernel gives to nobody, and each process of tests
has a block of them for itself for as long as it lives.
"""

import contextlib
import itertools
import os
import socket
from collections.abc import Iterator
from functools import cache

BLOCK = 500
FIRST, LAST = 10_000, 32_000  # Linux takes the ports of connections from 32,768 upwards


def own_port() -> int:
    """Return a port of this process on which nobody listens; it comes again only after all others."""
    for port in itertools.islice(_own_ports(), BLOCK):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("no port of this process is free")


@cache
def _own_ports() -> Iterator[int]:
    blocks = range(FIRST, LAST, BLOCK)
    start = os.getpid() % len(blocks)  # seldom where a run was killed a moment ago: what it has left behind may still ask those ports
    for first in (*blocks[start:], *blocks[:start]):
        with contextlib.suppress(OSError):
            socket.create_server(("127.0.0.1", first)).detach()  # it listens until the process ends, and so keeps the block
            return itertools.cycle(range(first + 1, first + BLOCK))
    raise OSError("every block of ports belongs to a process of tests")
