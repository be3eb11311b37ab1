"""What `fairlane serve` prints once it serves: where to send requests, one to try, and what each class may expect."""

from collections.abc import Collection

from fairlane.engines.address import place
from fairlane.gateway.links import EngineLink
from fairlane.settings import Settings


def welcome(settings: Settings, address: tuple[str, int], admin: tuple[str, int], links: Collection[EngineLink]) -> str:
    """The text, for a person at a terminal."""
    url = _url(address)
    models = [alias for pool in settings.pools for alias in pool.aliases]
    key = "" if settings.anonymous else "  -H 'Authorization: Bearer YOUR-KEY' \\\n"
    body = f'{{"model": "{models[0]}", "stream": true, "messages": [{{"role": "user", "content": "Why is the sky blue?"}}]}}'
    return "\n".join(
        [
            "",
            f"Fairlane serves {', '.join(models)} at {url}/v1",
            f"metrics, health and state: {_url(admin)}/metrics /readyz /admin/state",
            *map(_engine, links),
            *_open_door(settings),
            "",
            *_table(settings),
            "",
            "try it:",
            f"  curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' \\",
            f"{key}  -H 'X-Fairlane-Class: {_best_class(settings)}' \\",
            f"  -d '{body}'",
            "",
        ]
    )


def _engine(link: EngineLink) -> str:
    """One engine, and what an operator has to know of it."""
    where = f" at {link.settings.url}" if link.settings.url else ""
    if not link.up:
        return f"WARNING: engine {link.name}{where} does not answer ({link.problem}); it is asked again until it does"
    assumed = " to begin with, since the engine does not say: more or fewer as it bears them, unless `slots` says" if link.limit else ""
    return f"engine {link.name}{where}: {link.spec.slots} slots{assumed}"


def _open_door(settings: Settings) -> list[str]:
    host, _ = settings.server.listen_address
    if settings.anonymous is None or host in {"127.0.0.1", "::1", "localhost"}:
        return []
    return ["WARNING: open to the network, and callers need no key"]


def _url(address: tuple[str, int]) -> str:
    """A URL under which this machine reaches the address."""
    host, port = address
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - it is replaced, not bound
    return f"http://{place(host, port)}"


def _best_class(settings: Settings) -> str:
    return settings.anonymous.best_class if settings.anonymous else settings.tenants[0].best_class


def _table(settings: Settings) -> list[str]:
    head = ("class", "guaranteed", "longest wait", "most waiting")
    rows = [(c.name, f"{c.min_share:.0%}", _seconds(c.max_wait_s), f"{c.max_queued:,}") for c in settings.classes]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)]


def _seconds(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
