"""The simulated engine's port: uvicorn in the caller's event loop, which keeps its signals."""

import contextlib
import os
import socket
from collections.abc import AsyncIterator

from starlette.applications import Starlette

from fairlane import asgi
from fairlane.engines.address import place
from fairlane.errors import SettingsError

BACKLOG = 2048  # connections that the kernel holds until they are accepted
KEEP_ALIVE_S = 75  # an idle connection of a gateway's; a server that closes first breaks a request that is just being sent
STOP_S = 1  # for handlers whose client is gone


@contextlib.asynccontextmanager
async def serving(app: Starlette, host: str, port: int) -> AsyncIterator[tuple[str, int]]:
    """Serves inside the `with` block, whose value is host and port; at its end every connection is cut. Or a SettingsError."""
    bound = _bind(host, port)
    try:
        server = asgi.server(app, timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=STOP_S)
        await server.startup(sockets=[bound])
    except BaseException:
        bound.close()
        raise
    try:
        yield bound.getsockname()[:2]
    finally:
        for connection in list(server.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await server.shutdown(sockets=[bound])


def _bind(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=BACKLOG)
    except OSError as error:
        why = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)
        raise SettingsError([f"cannot listen on {place(host, port)}: {why}; use --listen HOST:PORT"]) from error
