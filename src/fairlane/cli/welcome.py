"""What `fairlane serve` prints once it serves: where to send requests, one to try, and what each class may expect."""

from fairlane.settings import Settings


def welcome(settings: Settings, address: tuple[str, int], admin: tuple[str, int], slots: dict[str, int]) -> str:
    """The text, for a person at a terminal."""
    url = _url(address)
    models = [alias for pool in settings.pools for alias in pool.aliases]
    key = "" if settings.anonymous else "  -H 'Authorization: Bearer YOUR-KEY' \\\n"
    pools = ", ".join(f"{name} ({count} slots)" for name, count in slots.items())
    question = '{"role": "user", "content": "What is the capital of France?"}'
    body = f'{{"model": "{models[0]}", "messages": [{question}], "max_tokens": 32, "temperature": 0}}'
    return "\n".join(
        [
            "",
            f"Fairlane serves {', '.join(models)} at {url}/v1   pools: {pools}",
            f"metrics, health and state: {_url(admin)}/metrics /readyz /admin/state",
            "",
            *_table(settings),
            "",
            "try it:",
            f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\",
            f"{key}  -H 'X-Fairlane-Class: {_best_class(settings)}' \\",
            f"  -d '{body}'",
            "",
        ]
    )


def _url(address: tuple[str, int]) -> str:
    host, port = address
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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
