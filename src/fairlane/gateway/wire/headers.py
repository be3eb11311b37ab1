"""Which headers of an engine's answer reach the client.

Hop-by-hop headers, what `Connection` names, cookies, the server's name and the names that this gateway speaks for itself stay
behind; so do cross-origin rules, which are the gateway's. Everything else passes, `Date` and encodings included.
"""

from fairlane.gateway.wire.response import Headers

OWN_HEADERS = frozenset(
    {
        b"connection",
        b"content-length",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-connection",
        b"server",
        b"set-cookie",
        b"set-cookie2",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"x-request-id",
    }
)
OWN_PREFIXES = (b"x-fairlane-", b"x-ratelimit-", b"access-control-")  # limits and cross-origin rules are the gateway's
UNBUFFERED = ((b"cache-control", b"cache-control: no-cache\r\n"), (b"x-accel-buffering", b"x-accel-buffering: no\r\n"))


def is_event_stream(headers: Headers) -> bool:
    """Tell an event stream that can be read here: one in a content encoding is passed like any other body."""
    kind = coding = b""
    for name, value in headers:
        if name == b"content-type":
            kind = value
        elif name == b"content-encoding":
            coding = value
    return kind[:17].lower() == b"text/event-stream" and coding.lower() in (b"", b"identity")


def pass_headers(headers: Headers, *, unbuffered: bool) -> bytes:
    """Make the header lines for the client out of an engine's."""
    named: set[bytes] = set()
    for name, value in headers:
        if name == b"connection" and value.lower() not in (b"keep-alive", b"close"):
            named.update(token.strip().lower() for token in value.split(b","))
    lines = [
        b"%b: %b\r\n" % (name, value)
        for name, value in headers
        if name not in OWN_HEADERS and not name.startswith(OWN_PREFIXES) and name not in named
    ]
    if unbuffered:
        present = {name for name, _ in headers}
        lines += [line for name, line in UNBUFFERED if name not in present]
    return b"".join(lines)
