"""Where an engine listens, read once from its URL and checked when the settings are.

Every request's path is the base path of the URL followed by a route of ours, so nothing else may be in the URL. Before its
scheme may stand `dns+`: then each address of the host is an engine. Whatever is wrong with a URL, the error's text never
repeats it: people do put keys there.
"""

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv6Address

from fairlane.errors import EngineError

_PORTS = {"http": 80, "https": 443}
_PORT_MAX = 65535
LOOKED_UP = "dns+"
_URL = re.compile(r"(?:dns\+)?(https?)://(\[[0-9a-f:.]+\]|[a-z0-9_.-]{1,255})(?::([0-9]{0,5}))?(/[!-~]*)?", re.IGNORECASE)


class AddressError(EngineError, ValueError):
    """The URL of an engine cannot be used. It is a ValueError as well, which is what checks of settings expect."""


@dataclass(frozen=True, slots=True)
class Address:
    """An engine's place: `host` without brackets, as a socket wants it; `authority` as the Host header wants it.

    `base_path` is empty or starts with a slash, and does not end with one.
    """

    host: str
    port: int
    tls: bool
    base_path: str
    authority: str


def parse(url: str) -> Address:
    """Return the address of an http or https URL, with or without `dns+` before it, or raise AddressError.

    A base path that ends with `/v1`, as the base URLs of OpenAI's clients do, means the same without it.
    """
    found = _URL.fullmatch(url)
    if not found or "?" in url or "#" in url:
        raise AddressError(f"the URL of an engine {_fault(url)}")
    scheme, host = found[1].lower(), found[2].lower()
    port = int(found[3] or _PORTS[scheme])
    if not 0 < port <= _PORT_MAX:
        raise AddressError(f"the URL of an engine must have a port from 1 to {_PORT_MAX}")
    if host.startswith("[") and not _is_ipv6(host[1:-1]):
        raise AddressError("the URL of an engine has something in brackets that is no IPv6 address")
    return Address(
        host=host.strip("[]"),
        port=port,
        tls=scheme == "https",
        base_path=(found[4] or "").rstrip("/").removesuffix("/v1").rstrip("/"),
        authority=host if port == _PORTS[scheme] else f"{host}:{port}",
    )


def is_looked_up(url: str) -> bool:
    """Whether each address that the URL's host resolves to is an engine of its own."""
    return url.lower().startswith(LOOKED_UP)


def place(host: str, port: int) -> str:
    """A host without brackets and its port, as URLs and people write them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _fault(url: str) -> str:
    scheme, _, rest = url.partition("://")
    if scheme.lower().removeprefix(LOOKED_UP) not in _PORTS:
        return "must start with http:// or https://, or with dns+http:// or dns+https://"
    if "@" in rest.partition("/")[0]:
        return "must not have a user name or password; a key belongs under api_key"
    if "?" in url or "#" in url:
        return "must not have a query or a fragment; a key belongs under api_key"
    return "must read http://HOST:PORT or http://HOST:PORT/PATH, in visible ASCII characters"


def _is_ipv6(host: str) -> bool:
    try:
        IPv6Address(host)
    except AddressValueError:
        return False
    return True
