"""Reads an engine's answers out of the bytes of one connection.

The parser (llhttp, strict) starts afresh after each complete message, so one serves all answers of a connection. What it lets
pass and a gateway must not is refused here: an endless head, transfer codings other than chunked, a switch of
protocols, and anything after the one answer that was asked for.
"""

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

HEAD_BYTES = 64 * 1024

Headers = list[tuple[bytes, bytes]]


class Unacceptable(Exception):
    """Stops the parser inside a callback, which it reports as an error of its own."""


class ResponseReader:
    """The present answer as far as it has come. `pieces` are the payload since they were last cleared.

    `status` is 0 until the final head is whole. `until_close`: only the end of the connection ends the answer. `keep`: the
    connection can carry another one, known once the answer is `complete`.
    """

    __slots__ = ("_fed", "_feed", "_interim", "_parser", "complete", "headers", "keep", "length", "pieces", "status", "until_close")

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self._feed = self._parser.feed_data
        self.reset()

    def reset(self) -> None:
        """Expect the next answer."""
        self._fed = 0
        self._interim = False
        self.status = 0
        self.headers: Headers = []
        self.length: int | None = None
        self.until_close = True
        self.pieces: list[bytes] = []
        self.complete = False
        self.keep = False

    def feed(self, data: bytes) -> bool:
        """Parse one arrival; False: it is not an answer that can be used."""
        try:
            self._feed(data)
        except (HttpParserError, HttpParserUpgrade):
            self.keep = False
            return self.complete
        if self.status:
            return True
        self._fed += len(data)
        return self._fed <= HEAD_BYTES

    def on_message_begin(self) -> None:
        """Refuse a second answer to one request."""
        if self.complete:
            raise Unacceptable

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect the head's headers under lower-case names; trailers are dropped."""
        if self.status:
            return
        name = name.lower()
        self.headers.append((name, value))
        if name == b"content-length":
            self.length = int(value)
            self.until_close = False
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked":
                raise Unacceptable
            self.until_close = False

    def on_headers_complete(self) -> None:
        """Take the final head; interim answers are passed over, but for 101, at which the parser stops by itself."""
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status
            return
        if status < 100:
            raise Unacceptable
        self._interim = True
        self.headers.clear()
        self.length = None
        self.until_close = True

    def on_body(self, data: bytes) -> None:
        """Collect payload."""
        self.pieces.append(data)

    def on_message_complete(self) -> None:
        """Note the end. Only here does the parser know whether the connection stays open."""
        if self._interim:
            self._interim = False
            return
        self.complete = True
        self.keep = self._parser.should_keep_alive()
