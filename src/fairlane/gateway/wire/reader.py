"""Turns a client's bytes into exchanges, and says no to what is not acceptable HTTP/1.1 before anything runs.

The parser (llhttp, strict) refuses what could be read in two ways: two lengths, a length beside chunks, bare line feeds,
folded headers. Here are added the size limits, the `Host` rule, the one transfer coding that is understood, and the
early refusal of a request whose body is not worth reading.

A reader turns *deaf* when nothing that follows can be trusted or wanted: after a refusal in the middle of a message,
or after a message that closes the connection. `unread` then says whether the client may still be sending.
"""

from collections.abc import Callable
from dataclasses import dataclass

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from fairlane.errors import RULES, Reason
from fairlane.gateway.wire.exchange import Exchange, Refusal

SMALL_BODY_BYTES = 64 * 1024  # a refused body up to this size is read, to keep the connection
AHEAD = 64  # requests parsed ahead out of one piece; after them the connection closes
REPEATS = 64  # headers of a name that came already: joining many would be slow
FRAMING_BYTES = 8  # bytes of chunk framing allowed for each byte of a body

Render = Callable[[int, Reason, str], tuple[bytes, bytes]]
Early = Callable[[Exchange], Refusal | None]
OnError = Callable[[Exchange, Exception], None]


@dataclass(frozen=True, slots=True)
class Intake:
    """What a reader accepts: `early` sees an exchange without its body, `render` makes the answer to a fault.

    What `early` raises by mistake goes to `on_error`, and the client gets a 500.
    """

    early: Early
    render: Render
    on_error: OnError
    max_body_bytes: int
    max_header_bytes: int

    def judge(self, exchange: Exchange) -> Refusal | None:
        """Ask `early`."""
        try:
            return self.early(exchange)
        except Exception as error:  # noqa: BLE001 - inside the parser it would pass for a malformed request
            self.on_error(exchange, error)
            return self.refusal(500, Reason.INTERNAL, RULES[Reason.INTERNAL].text)

    def refusal(self, status: int, reason: Reason, message: str) -> Refusal:
        """Render a refusal of the wire's own."""
        return (status, *self.render(status, reason, message))


class RequestReader:
    """The parser of one connection; `complete` collects exchanges that are ready to be answered, in order."""

    __slots__ = (
        "_body",
        "_fed",
        "_intake",
        "_open",
        "_parser",
        "_repeats",
        "_size",
        "_upgrade",
        "complete",
        "continue_due",
        "deaf",
        "head_seen",
        "incoming",
        "timed",
        "unread",
    )

    def __init__(self, intake: Intake, open_exchange: Callable[[], Exchange]) -> None:
        self._intake = intake
        self._open = open_exchange
        self._parser = HttpRequestParser(self)
        self._body: bytes | bytearray = b""
        self._size = 0
        self._fed = 0  # bytes parsed since the last complete message; an undercount after a pipelined one
        self._repeats = 0
        self._upgrade = False
        self.incoming: Exchange | None = None
        self.head_seen = False
        self.timed = False  # the owner's mark: the incoming head has its deadline
        self.complete: list[Exchange] = []
        self.continue_due = False
        self.deaf = False
        self.unread = False

    def feed(self, data: bytes) -> None:
        """Parse one piece; the outcome is in the attributes. Not to be called when deaf."""
        self._fed += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._parse_as_plain(data[upgrade.args[0] :])
        except HttpParserError as error:
            self._refuse(400, Reason.INVALID_REQUEST, f"Malformed HTTP request: {error}.")
        if self.incoming is not None:
            self._check_overhead()

    def time_out(self) -> None:
        """Give up on the message that is being received; its refusal is queued."""
        self._refuse(408, Reason.INVALID_REQUEST, "The request did not arrive in time.")

    # What the parser tells. Nothing here may write or start anything: the parser is not re-entrant.

    def on_message_begin(self) -> None:
        """Open an exchange."""
        if self.deaf:
            return
        if len(self.complete) >= AHEAD:
            self.complete[-1].keep_alive = False
            self.deaf = self.unread = True
            return
        self.incoming = self._open()
        self.head_seen = self.timed = False
        self._size = self._repeats = 0

    def on_url(self, url: bytes) -> None:
        """Collect the request target."""
        if self.incoming is not None:
            self.incoming.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers are dropped."""
        exchange = self.incoming
        if exchange is None or self.head_seen:
            return
        headers = exchange.headers
        name = name.lower()
        if name in headers:
            self._repeats += 1
            if self._repeats > REPEATS:
                return
            value = headers[name] + b", " + value
        headers[name] = value

    def on_headers_complete(self) -> None:
        """Judge the head."""
        exchange = self.incoming
        if exchange is None:
            return
        parser = self._parser
        exchange.method = parser.get_method().decode("ascii")
        if parser.should_upgrade() and exchange.method != "CONNECT":
            self._upgrade = True
            return
        self.head_seen = True
        fault = self._fault(exchange, parser.get_http_version())
        if fault is not None:
            self._refuse(*fault)
            return
        _split_target(exchange)
        self._decide(exchange)

    def on_body(self, data: bytes) -> None:
        """Collect the body up to the limit; the body of a refused request is dropped."""
        exchange = self.incoming
        if exchange is None:
            return
        self._size += len(data)
        if exchange.refusal is not None:
            return
        if self._size > self._intake.max_body_bytes:
            self._refuse(413, Reason.BODY_TOO_LARGE, self._body_limit())
            return
        body = self._body
        if not body:
            self._body = data
        elif isinstance(body, bytearray):
            body += data
        else:
            self._body = bytearray(body) + data

    def on_message_complete(self) -> None:
        """Queue the exchange. Only here does the parser know whether the connection stays open."""
        exchange = self.incoming
        if exchange is None or self._upgrade:
            return
        exchange.keep_alive = self._parser.should_keep_alive()
        exchange.body = bytes(self._body)
        self._body = b""
        self.incoming = None
        self.continue_due = False
        self._fed = 0
        self.complete.append(exchange)
        if not exchange.keep_alive:
            self.deaf = True

    def _decide(self, exchange: Exchange) -> None:
        """Refuse the request without its body, or let the body come."""
        headers = exchange.headers
        length = headers.get(b"content-length")
        declared = 0 if length is None else int(length)
        refusal: Refusal | None
        if declared > self._intake.max_body_bytes:
            refusal = self._intake.refusal(413, Reason.BODY_TOO_LARGE, self._body_limit())
        else:
            refusal = self._intake.judge(exchange)
        chunked = b"transfer-encoding" in headers
        waits = (declared > 0 or chunked) and not exchange.http_10 and headers.get(b"expect", b"").lower() == b"100-continue"
        if refusal is None:
            self.continue_due = waits
        elif waits or chunked or declared > SMALL_BODY_BYTES:
            self._deafen(exchange, refusal)
        else:
            exchange.refusal = refusal

    def _fault(self, exchange: Exchange, version: str) -> tuple[int, Reason, str] | None:
        headers = exchange.headers
        exchange.http_10 = version == "1.0"
        if version not in {"1.1", "1.0"}:
            return 505, Reason.INVALID_REQUEST, "Only HTTP/1.1 and HTTP/1.0 are spoken here."
        if self._repeats > REPEATS:
            return 431, Reason.HEADERS_TOO_LARGE, "Too many headers come more than once."
        limit = self._intake.max_header_bytes
        if self._fed > limit and len(exchange.target) + sum(len(k) + len(v) + 4 for k, v in headers.items()) > limit:
            return 431, Reason.HEADERS_TOO_LARGE, f"The request head is larger than {limit} bytes."
        if exchange.method == "CONNECT":
            return 405, Reason.METHOD_NOT_ALLOWED, "This is not a tunnel."
        coding = headers.get(b"transfer-encoding")
        if coding is not None and exchange.http_10:
            return 400, Reason.INVALID_REQUEST, "HTTP/1.0 has no transfer coding."
        if coding is not None and coding.lower() != b"chunked":
            return 501, Reason.INVALID_REQUEST, "The only transfer coding understood is 'chunked'."
        host = headers.get(b"host")
        if (host is None and not exchange.http_10) or (host is not None and b"," in host):
            return 400, Reason.INVALID_REQUEST, "Exactly one Host header is needed."
        return None

    def _check_overhead(self) -> None:
        """Bound the bytes that are parsed without becoming a body: an endless head, chunk framing, trailers."""
        limit = self._intake.max_header_bytes
        if not self.head_seen:
            if self._fed > limit:
                self._refuse(431, Reason.HEADERS_TOO_LARGE, f"The request head is larger than {limit} bytes.")
        elif self._fed > 2 * limit + FRAMING_BYTES * (self._size + limit):
            self._refuse(400, Reason.INVALID_REQUEST, "The body is mostly framing.")

    def _body_limit(self) -> str:
        return f"The request body is larger than {self._intake.max_body_bytes} bytes."

    def _refuse(self, status: int, reason: Reason, message: str) -> None:
        """Queue a refusal in place of the incoming message and turn deaf; a deaf reader has said all it has to say."""
        if self.deaf:
            self.unread = True
        else:
            self._deafen(self.incoming or self._open(), self._intake.refusal(status, reason, message))

    def _deafen(self, exchange: Exchange, refusal: Refusal) -> None:
        exchange.refusal = refusal
        exchange.keep_alive = False
        self.incoming = None
        self.continue_due = False
        self._body = b""
        self.complete.append(exchange)
        self.deaf = self.unread = True

    def _parse_as_plain(self, rest: bytes) -> None:
        """Ignore an offer to upgrade: parse the request again without it, since the parser skips its body."""
        exchange = self.incoming
        if exchange is None or not self._upgrade:
            return  # CONNECT, refused already: what follows is not HTTP
        version = self._parser.get_http_version().encode()
        self._upgrade = False
        self._parser = parser = HttpRequestParser(self)
        lines = [b"%b: %b\r\n" % pair for pair in exchange.headers.items() if pair[0] != b"upgrade"]
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (exchange.method.encode(), exchange.target, version, b"".join(lines))
        self.incoming = None
        try:
            parser.feed_data(head)
        except HttpParserError as error:
            self._refuse(400, Reason.INVALID_REQUEST, f"Malformed HTTP request: {error}.")
        if rest and not self.deaf:
            self.feed(rest)


def _split_target(exchange: Exchange) -> None:
    """Set path and query; the authority of an absolute-form target is ignored, whatever it names."""
    target = exchange.target
    if not target.startswith(b"/"):
        _, found, rest = target.partition(b"://")
        if found:
            _, slash, path = rest.partition(b"/")
            target = slash + path or b"/"
    path, _, exchange.query = target.partition(b"?")
    exchange.path = path.decode("latin-1")
