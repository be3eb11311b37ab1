"""The admin port: uvicorn in the gateway's own event loop.

uvicorn and Starlette take longer to import than the gateway takes to listen, so they are imported by `start`, in a thread that
leaves the loop free. The port is bound before that: one that is in use stops the start at once.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fairlane.engines.address import place
from fairlane.errors import SettingsError
from fairlane.telemetry.metrics import Metrics

if TYPE_CHECKING:
    import uvicorn

    from fairlane.admin.app import Drain, Engines

CONNECTIONS_MAX = 64  # scrapers and operators, not clients; beyond it uvicorn answers 503
STOP_S = 1  # a page takes milliseconds; what is slower is a reader that has stopped reading


class AdminServer:
    """Serves the pages of `fairlane.admin.app` from `start` to `stop`."""

    def __init__(
        self,
        metrics: Metrics,
        state: Callable[[], dict[str, Any]],
        ready: Callable[[], tuple[bool, str]],
        engines: "Engines",
        drain: "Drain",
    ) -> None:
        self._pages = (metrics, state, ready, engines, drain)
        self._server: uvicorn.Server | None = None
        self._socket: socket.socket | None = None

    @property
    def address(self) -> tuple[str, int]:
        """The host and port it is bound to: with port 0 asked for, the port that was given."""
        if self._socket is None:
            raise RuntimeError("the admin port is not open")
        host, port = self._socket.getsockname()[:2]
        return host, port

    async def start(self, host: str, port: int) -> None:
        """Answer requests from now on, or raise SettingsError where the address cannot be had."""
        bound = await _bind(host, port)
        try:
            server = await asyncio.to_thread(self._build)
            await server.startup(sockets=[bound])
        except BaseException:
            bound.close()
            raise
        self._server, self._socket = server, bound

    async def stop(self) -> None:
        """Let running answers end, within `STOP_S`, and free the port. Stopping what does not run is no fault."""
        server, bound = self._server, self._socket
        self._server = self._socket = None
        if server is None or bound is None:
            return
        await server.shutdown(sockets=[bound])
        for connection in list(server.server_state.connections):
            connection.transport.abort()

    def _build(self) -> "uvicorn.Server":
        from fairlane import asgi  # noqa: PLC0415 - see the module's docstring
        from fairlane.admin.app import make_app  # noqa: PLC0415 - imports Starlette

        return asgi.server(
            make_app(*self._pages), backlog=CONNECTIONS_MAX, limit_concurrency=CONNECTIONS_MAX, timeout_graceful_shutdown=STOP_S
        )


def _cannot(host: str, port: int, error: OSError) -> str:
    why = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)
    if error.errno == errno.EADDRINUSE:
        why += ", perhaps by another fairlane"
    return f"cannot listen on {place(host, port)} (admin pages): {why}; use --admin-listen HOST:PORT or server.admin_listen"


async def _bind(host: str, port: int) -> socket.socket:
    """A socket that listens on the first address of `host`; the kernel holds connections until uvicorn accepts them."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(CONNECTIONS_MAX)
            bound.setblocking(False)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise SettingsError([_cannot(host, port, error)]) from error
    return bound
