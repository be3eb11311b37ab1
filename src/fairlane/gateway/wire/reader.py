"""Turns a client's bytes into exchanges, and says no to what is not acceptable HTTP/1.1 before anything runs.

The parser (llhttp, strict) refuses what could be read in two ways: two lengths, a length beside chunks, bare line feeds,
folded headers. Here are added the size limits, the `Host` rule, the one transfer coding that is understood, and the
early refusal of a request whose body is not worth reading.

A head that the client sends again is recognised without the parser, and its body counted: see `known.py`. Everything else that
arrives is the parser's, which does not notice what it was spared, because it comes in between messages.

A reader turns *deaf* when nothing that follows can be trusted or wanted: after a refusal in the middle of a message,
or after a message that closes the connection. `unread` then says whether the client may still be sending.
"""

from collections.abc import Callable
from dataclasses import dataclass

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from fairlane.errors import RULES, Reason
from fairlane.gateway.wire.exchange import Exchange, Head, Refusal, Wire
from fairlane.gateway.wire.known import KnownHead, remember

SMALL_BODY_BYTES = 64 * 1024  # a refused body up to this size is read, to keep the connection
AHEAD = 64  # requests parsed ahead out of one piece; after them the connection closes
REPEATS = 64  # headers of a name that came already: joining many would be slow
FRAMING_BYTES = 8  # bytes of chunk framing allowed for each byte of a body

Render = Callable[[int, Reason, str], tuple[bytes, bytes]]
Early = Callable[[Exchange], Refusal | None]
OnError = Callable[[Exchange, Exception], None]


@dataclass(frozen=True)
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
        "_headers",
        "_intake",
        "_known",
        "_missing",
        "_parser",
        "_piece",
        "_repeats",
        "_size",
        "_upgrade",
        "_wire",
        "complete",
        "continue_due",
        "deaf",
        "head_seen",
        "incoming",
        "timed",
        "unread",
    )

    def __init__(self, intake: Intake, wire: Wire) -> None:
        self._intake = intake
        self._wire = wire
        self._parser = HttpRequestParser(self)
        self._piece = b""  # what is being parsed, as long as no message began in it but at its first byte
        self._headers: dict[bytes, bytes] | None = None  # of the incoming head; None: what comes are trailers, or unwanted
        self._body: bytes | bytearray = b""
        self._size = 0
        self._fed = 0  # bytes parsed since the last complete message; an undercount after a pipelined one
        self._repeats = 0
        self._upgrade = False
        self._known: KnownHead | None = None
        self._missing = 0  # bytes of the body of a recognised head
        self.incoming: Exchange | None = None
        self.head_seen = False
        self.timed = False  # the owner's mark: the incoming head has its deadline
        self.complete: list[Exchange] = []
        self.continue_due = False
        self.deaf = False
        self.unread = False

    def recognise(self, data: bytes) -> Exchange | None:
        """Return the exchange, if `data` is exactly a message with the known head; else feed it. Not to be called when deaf."""
        known = self._known
        if known is None or self.incoming is not None or self.complete:
            return None
        start, length = known.measure(data)
        if not start or start + length != len(data) or length > self._intake.max_body_bytes:
            return None
        return Exchange(self._wire, known.head, data[start:])

    def feed(self, data: bytes) -> None:
        """Read one piece; the outcome is in the attributes. Not to be called when deaf."""
        if self.incoming is not None and self._missing:
            data = self._count_body(self.incoming, data)
        elif self.incoming is None and not self.complete and self._known is not None:
            data = self._begin_known(self._known, data)
        if data:
            self._parse(data)

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
        self._open()

    def on_url(self, url: bytes) -> None:
        """Collect the request target."""
        if self.incoming is not None:
            self.incoming.head.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers are dropped."""
        headers = self._headers
        if headers is None:
            return
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
        self._headers = None
        piece, self._piece = self._piece, b""
        parser, head = self._parser, exchange.head
        head.method = parser.get_method().decode("ascii")
        head.keep_alive = parser.should_keep_alive()
        if parser.should_upgrade() and head.method != "CONNECT":
            self._upgrade = True
            return
        self.head_seen = True
        fault = self._fault(head, parser.get_http_version())
        if fault is not None:
            self._refuse(*fault)
            return
        _split_target(head)
        self._decide(exchange, piece)

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
        """Queue the exchange. A trailer may have said that the connection closes."""
        exchange = self.incoming
        if exchange is None or self._upgrade:
            return
        exchange.keep_alive = self._parser.should_keep_alive()
        self._complete(exchange)

    # The way of a message.

    def _parse(self, data: bytes) -> None:
        self._fed += len(data)
        self._piece = data if self.incoming is None else b""
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._parse_as_plain(data[upgrade.args[0] :])
        except HttpParserError as error:
            self._refuse(400, Reason.INVALID_REQUEST, f"Malformed HTTP request: {error}.")
        self._piece = b""
        if self.incoming is not None:
            self._check_overhead()

    def _begin_known(self, known: KnownHead, data: bytes) -> bytes:
        """Take the known head and what there is of its body; or return `data` to be parsed, if it is anything else."""
        start, length = known.measure(data)
        if not start or start + length < len(data) or length > self._intake.max_body_bytes:
            return data
        exchange = self._open(known.head)
        self._headers = None
        self.head_seen = True
        self._missing = length
        return self._count_body(exchange, data[start:])

    def _count_body(self, exchange: Exchange, data: bytes) -> bytes:
        body = data[: self._missing]
        self._missing -= len(body)
        self.on_body(body)
        if not self._missing:
            self._complete(exchange)
        return data[len(body) :]

    def _open(self, head: Head | None = None) -> Exchange:
        self.incoming = exchange = Exchange(self._wire, head or Head())
        self._headers = exchange.head.headers
        self.head_seen = self.timed = False
        self._size = self._repeats = 0
        return exchange

    def _complete(self, exchange: Exchange) -> None:
        exchange.body = bytes(self._body)
        self._body = b""
        self.incoming = None
        self.continue_due = False
        self._fed = 0
        self.complete.append(exchange)
        if not exchange.keep_alive:
            self.deaf = True

    def _decide(self, exchange: Exchange, piece: bytes) -> None:
        """Refuse the request without its body, or let the body come, and know its head the next time."""
        head = exchange.head
        headers = head.headers
        length = headers.pop(b"content-length", b"0")
        declared = int(length)
        refusal: Refusal | None
        if declared > self._intake.max_body_bytes:
            refusal = self._intake.refusal(413, Reason.BODY_TOO_LARGE, self._body_limit())
        else:
            refusal = self._intake.judge(exchange)
        chunked = b"transfer-encoding" in headers
        waits = (declared > 0 or chunked) and not head.http_10 and headers.get(b"expect", b"").lower() == b"100-continue"
        if refusal is None:
            self.continue_due = waits
            self._known = remember(piece, head, length, self._intake.max_header_bytes) or self._known
        elif waits or chunked or declared > SMALL_BODY_BYTES:
            self._deafen(exchange, refusal)
        else:
            exchange.refusal = refusal

    def _fault(self, head: Head, version: str) -> tuple[int, Reason, str] | None:
        headers = head.headers
        head.http_10 = version == "1.0"
        if version not in {"1.1", "1.0"}:
            return 505, Reason.INVALID_REQUEST, "Only HTTP/1.1 and HTTP/1.0 are spoken here."
        if self._repeats > REPEATS:
            return 431, Reason.HEADERS_TOO_LARGE, "Too many headers come more than once."
        limit = self._intake.max_header_bytes
        if self._fed > limit and len(head.target) + sum(len(k) + len(v) + 4 for k, v in headers.items()) > limit:
            return 431, Reason.HEADERS_TOO_LARGE, f"The request head is larger than {limit} bytes."
        if head.method == "CONNECT":
            return 405, Reason.METHOD_NOT_ALLOWED, "This is not a tunnel."
        coding = headers.get(b"transfer-encoding")
        if coding is not None and head.http_10:
            return 400, Reason.INVALID_REQUEST, "HTTP/1.0 has no transfer coding."
        if coding is not None and coding.lower() != b"chunked":
            return 501, Reason.INVALID_REQUEST, "The only transfer coding understood is 'chunked'."
        host = headers.get(b"host")
        if (host is None and not head.http_10) or (host is not None and b"," in host):
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
            self._deafen(self.incoming or Exchange(self._wire, Head()), self._intake.refusal(status, reason, message))

    def _deafen(self, exchange: Exchange, refusal: Refusal) -> None:
        exchange.refusal = refusal
        exchange.keep_alive = False
        self.incoming = self._headers = None
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
        head = exchange.head
        lines = [b"%b: %b\r\n" % pair for pair in head.headers.items() if pair[0] != b"upgrade"]
        plain = b"%b %b HTTP/%b\r\n%b\r\n" % (head.method.encode(), head.target, version, b"".join(lines))
        self.incoming = None
        try:
            parser.feed_data(plain)
        except HttpParserError as error:
            self._refuse(400, Reason.INVALID_REQUEST, f"Malformed HTTP request: {error}.")
        if rest and not self.deaf:
            self.feed(rest)


def _split_target(head: Head) -> None:
    """Set path and query; the authority of an absolute-form target is ignored, whatever it names."""
    target = head.target
    if not target.startswith(b"/"):
        _, found, rest = target.partition(b"://")
        if found:
            _, slash, path = rest.partition(b"/")
            target = slash + path or b"/"
    path, _, head.query = target.partition(b"?")
    head.path = path.decode("latin-1")
