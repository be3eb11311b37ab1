"""The addresses of a name, one of which each engine behind a `dns+` URL has.

A name that cannot be looked up keeps the addresses that it had: the probes know which of their engines are alive. A name that
resolves to nothing at all loses them only after `EMPTY_MAX` answers of that kind in a row, since a zone that is being reloaded
gives one, too. Beyond `ADDRESSES_MAX` addresses none is taken: each costs connections, probes and series of metrics.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

ADDRESSES_MAX = 256
EMPTY_MAX = 3
_NO_ADDRESS = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}  # the latter is not everywhere

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses that the system knows of a host, none if it has none; OSError or UnicodeError if they cannot be had."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in _NO_ADDRESS:
            return ()
        raise
    return [str(one[4][0]) for one in found]


class Addresses:
    """The addresses of one name that count now, of `dropped` there were too many."""

    def __init__(self) -> None:
        self.now: tuple[str, ...] = ()
        self.dropped = 0
        self._empty = 0

    def take(self, answer: Sequence[str]) -> None:
        """Takes an answer, in any order and with any address twice. Those that are known stay before others come in."""
        found = set(answer)
        self._empty = 0 if found else self._empty + 1
        if not found and self._empty < EMPTY_MAX:
            return
        kept = [address for address in self.now if address in found]
        all_of_them = [*kept, *sorted(found.difference(kept))]
        self.now = tuple(all_of_them[:ADDRESSES_MAX])
        self.dropped = len(all_of_them) - len(self.now)
