"""Settings for one engine of which only the URL is known: its kind and its models are asked for."""

import ssl

from fairlane import plugins
from fairlane.engines.adapter import Report
from fairlane.engines.address import Address, parse
from fairlane.errors import EngineError
from fairlane.gateway.wire.upstream import EnginePool, fetch
from fairlane.settings import PoolSettings, Settings, load


async def settings_for(url: str) -> Settings:
    """The settings without a file, with this engine in place of the embedded one; EngineError if it cannot be reached."""
    address = parse(url)
    pool = EnginePool(address.host, address.port, ssl.create_default_context() if address.tls else None, authority=address.authority)
    try:
        kind = "llamacpp"
        report = await _ask(kind, pool, address)
        if report.slots is None or not report.models:
            kind = "openai"
            report = await _ask(kind, pool, address)
    finally:
        pool.close()
    if not report.healthy:
        raise EngineError(
            f"no engine answers at {url}: {report.problem}. Start it first, or describe it in a file: fairlane serve --config FILE"
        )
    if not report.models:
        raise EngineError(f"the engine at {url} does not say which models it serves; name them in a file: fairlane serve --config FILE")
    settings = load(None)
    main = PoolSettings.model_validate(
        {"name": "main", "models": report.models, "engines": ({"name": "engine", "kind": kind, "url": url},)}
    )
    return settings.model_copy(update={"pools": (main,)})


async def _ask(kind: str, pool: EnginePool, address: Address) -> Report:
    adapter = plugins.engine_adapter(kind)
    return adapter.read([await fetch(pool, address.base_path + path) for path in adapter.probes])
