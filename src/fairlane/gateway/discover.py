"""Settings for one engine of which only the URL is known: its kind and its models are asked for."""

import re
import ssl

from fairlane import plugins
from fairlane.engines.adapter import Report
from fairlane.engines.address import Address, AddressError, parse
from fairlane.errors import EngineError
from fairlane.gateway.wire.upstream import ConnectFailed, EnginePool, fetch
from fairlane.settings import PoolSettings, Settings, load

_INSTEAD = "describe it in a file: fairlane serve --config FILE"
_NOT_FOUND = 404
_WHY = {"refused": "connection refused", "dns": "no such host", "timeout": "timeout", "tls": "TLS failed"}


async def settings_for(url: str) -> Settings:
    """The settings without a file, with this engine in place of the embedded one; EngineError if it cannot be reached."""
    address = _address(url)
    pool = EnginePool(address.host, address.port, ssl.create_default_context() if address.tls else None, authority=address.authority)
    try:
        await _reach(pool, url)
        kind = "llamacpp"
        report, _ = await _ask(kind, pool, address)
        status = 0
        if report.slots is None or not report.models:
            kind = "openai"
            report, status = await _ask(kind, pool, address)
    finally:
        pool.close()
    if not report.healthy:
        raise EngineError(f"no engine answers at {url}: {report.problem}. Start it first, or {_INSTEAD}")
    if not report.models:
        raise EngineError(_nameless(url, status))
    settings = load(None)
    main = PoolSettings.model_validate(
        {"name": "main", "models": report.models, "engines": ({"name": "engine", "kind": kind, "url": url},)}
    )
    return settings.model_copy(update={"pools": (main,)})


def _address(url: str) -> Address:
    """The address, or an error that names the option. It repeats the URL only where no key can be in it."""
    try:
        return parse(url)
    except AddressError as error:
        shown = "" if re.search(r"[@?#]", url) else f" {url[:200]}"
        raise EngineError(f"--engine{shown}: {str(error).removeprefix('the URL of an engine ')}") from None


async def _reach(pool: EnginePool, url: str) -> None:
    """Connects once, for a probe does not tell why it got no answer."""
    try:
        connection = await pool.connect()
    except ConnectFailed as failure:
        why = _WHY.get(failure.why, failure.why)
        raise EngineError(f"no engine answers at {url}: {why}. Start it first, or {_INSTEAD}") from None
    connection.abort()


async def _ask(kind: str, pool: EnginePool, address: Address) -> tuple[Report, int]:
    """What an adapter reads, and the status of the last page that it asked for."""
    adapter = plugins.engine_adapter(kind)
    answers = [await fetch(pool, address.base_path + path) for path in adapter.probes]
    return adapter.read(answers), answers[-1][0]


def _nameless(url: str, status: int) -> str:
    if status == _NOT_FOUND:
        return (
            f"{url.rstrip('/').removesuffix('/v1')}/v1/models answered 404. Give the base URL, such as http://127.0.0.1:9000, or {_INSTEAD}"
        )
    return f"the engine at {url} does not say which models it serves; name them in a file: fairlane serve --config FILE"
