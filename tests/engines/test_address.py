"""URLs of engines: what they become, and which are refused without being repeated."""

import pytest

from fairlane.engines.address import Address, AddressError, is_looked_up, parse
from fairlane.errors import EngineError

GOOD = {
    "http://127.0.0.1:8000": Address("127.0.0.1", 8000, tls=False, base_path="", authority="127.0.0.1:8000"),
    "http://gpu-1.internal": Address("gpu-1.internal", 80, tls=False, base_path="", authority="gpu-1.internal"),
    "https://api.example.com/": Address("api.example.com", 443, tls=True, base_path="", authority="api.example.com"),
    "https://api.example.com:443/v1": Address("api.example.com", 443, tls=True, base_path="", authority="api.example.com"),
    "http://h:443/openai/v1/": Address("h", 443, tls=False, base_path="/openai", authority="h:443"),
    "http://h:80//v1": Address("h", 80, tls=False, base_path="", authority="h"),
    "http://h/v1beta": Address("h", 80, tls=False, base_path="/v1beta", authority="h"),
    "http://h/a/@b//": Address("h", 80, tls=False, base_path="/a/@b", authority="h"),
    "HTTP://LLM_Engine:8000": Address("llm_engine", 8000, tls=False, base_path="", authority="llm_engine:8000"),
    "http://[::1]:8000/x": Address("::1", 8000, tls=False, base_path="/x", authority="[::1]:8000"),
    "http://[2001:DB8::7]": Address("2001:db8::7", 80, tls=False, base_path="", authority="[2001:db8::7]"),
    "dns+http://Pool:8000/v1": Address("pool", 8000, tls=False, base_path="", authority="pool:8000"),
    "DNS+https://pool": Address("pool", 443, tls=True, base_path="", authority="pool"),
    "http://h:": Address("h", 80, tls=False, base_path="", authority="h"),
}

BAD = {
    "": "must start with http:// or https://",
    "127.0.0.1:8000": "must start with http:// or https://",
    "localhost:8000": "must start with http:// or https://",
    "dns+ftp://SECRET/": "must start with http:// or https://, or with dns\\+http:// or dns\\+https://",
    "dns+dns+http://SECRET/": "must start with http:// or https://",
    "dns+http://u:SECRET@h": "must not have a user name or password",
    "ftp://SECRET/": "must start with http:// or https://",
    "unix:///run/SECRET": "must start with http:// or https://",
    "http://u:SECRET@h:8000": "must not have a user name or password",
    "http://SECRET@h/": "must not have a user name or password",
    "http://h\\@SECRET/": "must not have a user name or password",
    "http://h/?key=SECRET": "must not have a query",
    "http://h?": "must not have a query",
    "http://h/#SECRET": "must not have a query or a fragment",
    "http://h:SECRET/": "must read http://HOST:PORT",
    "http:///SECRET": "must read http://HOST:PORT",
    "http://:8000/": "must read http://HOST:PORT",
    "http://h h/SECRET": "must read http://HOST:PORT",
    "http://h/a b": "must read http://HOST:PORT",
    "http://h/a\nHost: SECRET": "must read http://HOST:PORT",
    "http://h:80\n": "must read http://HOST:PORT",
    "http://bücher.SECRET/": "must read http://HOST:PORT",
    "http://[::1": "must read http://HOST:PORT",
    "http://SECRET[::1]:80/": "must read http://HOST:PORT",
    "http://[fe80::1%25eth0]/": "must read http://HOST:PORT",
    "http://[::1::2]/": "no IPv6 address",
    "http://[1.2.3.4]/": "no IPv6 address",
    "http://h:0/": "a port from 1 to 65535",
    "http://h:65536/": "a port from 1 to 65535",
}


@pytest.mark.parametrize("url", GOOD)
def test_a_url_becomes_an_address(url: str) -> None:
    """Host, port, base path and authority are those that the wire needs."""
    assert parse(url) == GOOD[url]
    assert is_looked_up(url) == url.lower().startswith("dns+")


@pytest.mark.parametrize("url", BAD)
def test_a_url_that_cannot_be_used_is_refused_without_repeating_it(url: str) -> None:
    """The error tells what is wrong, is an EngineError and a ValueError, and holds nothing that may be secret."""
    with pytest.raises(AddressError, match=BAD[url]) as caught:
        parse(url)
    assert isinstance(caught.value, EngineError)
    assert isinstance(caught.value, ValueError)
    assert "secret" not in str(caught.value).lower()
    assert caught.value.__cause__ is None
