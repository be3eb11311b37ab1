"""`fairlane serve`: the gateway in the foreground, until SIGTERM or Ctrl-C."""

import argparse
import asyncio
import gc
import resource
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path

import uvloop

from fairlane import settings as configuration
from fairlane.admin.server import AdminServer
from fairlane.cli.welcome import welcome
from fairlane.engines import weights
from fairlane.errors import SettingsError
from fairlane.gateway.app import Gateway
from fairlane.gateway.discover import settings_for
from fairlane.settings import EngineSettings, Settings
from fairlane.telemetry.log import Log
from fairlane.telemetry.stdlib import LibraryLogs

SPARE_DESCRIPTORS = 64  # for logs, the admin port, probes and the embedded engine


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command to the command line."""
    parser = commands.add_parser("serve", help="run the gateway", description="Runs the gateway in the foreground.")
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file; without it, an embedded demonstration model is served")
    parser.add_argument("--listen", metavar="ADDR", help="HOST:PORT for clients instead of the configured one")
    parser.add_argument("--admin-listen", metavar="ADDR", help="HOST:PORT for health, metrics and state instead of the configured one")
    parser.add_argument("--engine", metavar="URL", help="serve the models of this OpenAI-compatible server; no --config")
    parser.add_argument("--model", metavar="FILE.gguf", help="serve this model on the embedded engine; no --config")
    parser.add_argument("--slots", type=_positive, metavar="N", help="requests that the engine runs at once; no --config")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"), help="default: info")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serves until it is told to stop."""
    chosen = [name for name in ("config", "engine", "model") if getattr(args, name)]
    if args.config and args.slots:
        chosen.append("slots")
    if len(chosen) > 1:
        raise SettingsError([f"--{chosen[0]} and --{chosen[1]} exclude each other"])
    settings = _with_weights(_settings(args))
    log = Log(sys.stderr, args.log_level)
    LibraryLogs(log).attach()
    settings = _within_descriptors(settings, log)
    try:
        return uvloop.run(_serve(settings, log))
    finally:
        log.flush()


async def _serve(settings: Settings, log: Log) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    gateway = Gateway(settings, log)
    admin = AdminServer(gateway.metrics, gateway.view.state, gateway.ready, gateway.view.engines, gateway.roster.drain)
    try:
        address = await gateway.start()
        await admin.start(*settings.server.admin_address)
        if await _before(gateway.first_probes(), stop):
            print(welcome(settings, address, admin.address, gateway.links.values()), file=sys.stderr, flush=True)
            gc.collect()
            gc.freeze()
        await stop.wait()
        print("stopping: what waits and runs may end; once more to cut it off", file=sys.stderr, flush=True)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, gateway.hurry.set)
        await gateway.stop()
        await admin.stop()
    return 0


async def _before(work: Coroutine[object, object, None], stop: asyncio.Event) -> bool:
    """Does the work unless it is told to stop first; returns whether it is done."""
    loop = asyncio.get_running_loop()
    working, stopping = loop.create_task(work), loop.create_task(stop.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    for task in (working, stopping):
        task.cancel()
    await asyncio.wait((working, stopping))
    if working.cancelled():
        return False
    working.result()
    return True


def _settings(args: argparse.Namespace) -> Settings:
    if args.engine:
        settings = uvloop.run(settings_for(args.engine))
    elif args.model:
        settings = _with_model(configuration.load(None), Path(args.model))
    else:
        settings = configuration.load(args.config)
    server = settings.server.model_copy(update=_addresses(args))
    if server.listen == server.admin_listen and not server.listen.endswith(":0"):
        raise SettingsError([f"clients and admin pages cannot share the address {server.listen}; see --listen and --admin-listen"])
    pools = settings.pools
    if args.slots:
        pools = tuple(pool.model_copy(update={"slots": args.slots}) for pool in pools)
    return settings.model_copy(update={"server": server, "pools": pools})


def _addresses(args: argparse.Namespace) -> dict[str, str]:
    """The addresses of the command line, checked by the same rule as in a file."""
    given = {"listen": args.listen, "admin_listen": args.admin_listen}
    for name, address in given.items():
        try:
            configuration.split_address(address or "127.0.0.1:0")
        except ValueError as fault:
            raise SettingsError([f"--{name.replace('_', '-')} {address}: {fault}"]) from None
    return {name: address for name, address in given.items() if address}


def _positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def _with_weights(settings: Settings) -> Settings:
    """The settings with a model file for each embedded engine; the demonstration model is fetched if it is nowhere yet."""

    def located(engine: EngineSettings) -> EngineSettings:
        if engine.kind != "embedded":
            return engine
        path = weights.locate(Path(engine.model_file) if engine.model_file else None, sys.stderr)
        return engine.model_copy(update={"model_file": str(path)})

    pools = tuple(pool.model_copy(update={"engines": tuple(map(located, pool.engines))}) for pool in settings.pools)
    return settings.model_copy(update={"pools": pools})


def _within_descriptors(settings: Settings, log: Log) -> Settings:
    """Takes all the file descriptors that this process may have, and no more clients than they suffice for.

    A request needs two, for its client and for its engine.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    fits = (most - SPARE_DESCRIPTORS) // 2
    if most == resource.RLIM_INFINITY or settings.server.max_connections <= fits:
        return settings
    if "max_connections" in settings.server.model_fields_set or fits < settings.server.max_connections // 2:
        log.warning("max_connections", configured=settings.server.max_connections, used=fits, descriptors=most)
    return settings.model_copy(update={"server": settings.server.model_copy(update={"max_connections": fits})})


def _with_model(settings: Settings, path: Path) -> Settings:
    pool = settings.pools[0]
    engine = pool.engines[0].model_copy(update={"model_file": str(path)})
    pool = pool.model_copy(update={"models": ({path.stem: path.stem},), "engines": (engine,)})
    return settings.model_copy(update={"pools": (pool,)})
