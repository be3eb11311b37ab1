"""Keeps embedded engines running: starts each, tells its link where it listens, and starts it anew when it ends."""

import asyncio
import time
from pathlib import Path

from fairlane.engines import embedded
from fairlane.errors import EngineError
from fairlane.gateway.links import EngineLink
from fairlane.telemetry.log import Log

SLOTS_BY_DEFAULT = 2  # on a CPU more requests at once make each slower and the sum no faster
CONTEXT_BY_DEFAULT = 4096  # tokens of one slot
RESTART_MAX_S = 30.0  # between two starts of an engine that keeps ending
STEADY_S = 60.0  # after which an engine counts as having run


async def start(link: EngineLink, model: str, log: Log) -> embedded.EmbeddedEngine:
    """Starts the engine of a link, whose `model_file` is set, and connects the link to it. `model` is the name it answers to."""
    settings = link.settings
    path = Path(settings.model_file or "")
    slots = link.spec.slots or SLOTS_BY_DEFAULT
    engine = await embedded.start(path, name=model, slots=slots, context=settings.context or CONTEXT_BY_DEFAULT)
    log.info("embedded_engine_started", engine=link.name, pid=engine.pid, model=path.name, slots=slots)
    link.connect_to(engine.url)
    return engine


async def keep(link: EngineLink, model: str, engine: embedded.EmbeddedEngine, log: Log) -> None:
    """Starts the engine anew whenever it ends; stops it when cancelled."""
    wait = 0.0
    while True:
        began = time.monotonic()
        try:
            problem = await engine.wait_closed()
        finally:
            await engine.stop()
        link.unreachable("the embedded engine ended", gone=True)
        log.error("embedded_engine_ended", engine=link.name, problem=problem)
        wait = 0.0 if time.monotonic() - began > STEADY_S else min(RESTART_MAX_S, 2 * wait + 1.0)
        while True:
            await asyncio.sleep(wait)
            try:
                engine = await start(link, model, log)
                break
            except EngineError as error:
                log.error("embedded_engine_failed", engine=link.name, problem=str(error))
                wait = min(RESTART_MAX_S, 2 * wait + 1.0)
