"""URLs without their secrets, for logs, errors and the admin port.

Passwords contain `/`, `?` and `#` although they should be escaped there, so where a URL's user part ends cannot be told for
certain. The rule hides too much rather than too little.
"""

import re

_HIDDEN = "***"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def redact(url: str) -> str:
    """The URL with all before its last `@`, every value in its query, and its fragment hidden."""
    scheme = _SCHEME.match(url)
    start = scheme.group() if scheme else ""
    user, at, rest = url[len(start) :].rpartition("@")
    rest, has_fragment, _ = rest.partition("#")
    rest, has_query, query = rest.partition("?")
    hidden_query = "&".join(_redact_pair(pair) for pair in query.split("&")) if query else ""
    return "".join((start, _HIDDEN if user else "", at, rest, has_query, hidden_query, f"#{_HIDDEN}" if has_fragment else ""))


def _redact_pair(pair: str) -> str:
    name, equals, _ = pair.partition("=")
    return f"{name}={_HIDDEN}" if equals else _HIDDEN
