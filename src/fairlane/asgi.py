"""uvicorn inside an event loop that somebody else runs: its own main loop wakes ten times a second and takes over the signals."""

from typing import Any

import uvicorn
from starlette.applications import Starlette


def server(app: Starlette, **more: Any) -> uvicorn.Server:  # noqa: ANN401 - uvicorn's own settings
    """A server to `startup` and `shutdown` with sockets of the caller's. It says nothing by itself and adds no headers."""
    config = uvicorn.Config(
        app,
        loop="none",
        http="httptools",
        ws="none",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        **more,
    )
    config.load()
    made = uvicorn.Server(config)
    made.lifespan = config.lifespan_class(config)
    return made
