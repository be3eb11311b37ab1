"""A head that comes again is recognised, not parsed.

A client that keeps its connection sends the same head again and again, but for the digits of content-length. What the parser
would make of it is known beforehand:

- Between two messages the parser has no memory of the last one, so the same bytes lead it through the same states to the same
  callbacks. Only the digits differ, and they can only change the length that is declared: `remember` has made sure that they
  stand where the parser saw the value of content-length. The head began a message and came in one piece, its lines end in CRLF
  and nowhere else, exactly one of them has that name, and it holds what the parser reported.
- The digits are taken in one form only: no sign, no blank, no leading zero, at most `DIGITS_MAX`. What the parser would make of
  other forms need not be known.
- Beside a length there is no other way to find the end of the body than to count. Heads with a transfer coding, with an
  expectation or an offer to upgrade are not remembered.

And whoever judged the head would judge it the same: the client is the same, and lengths beyond the limit are left to the parser.
"""

from typing import Final

from fairlane.gateway.wire.exchange import Head

DIGITS_MAX: Final = 15  # of a content-length
KNOWN_BYTES: Final = 4096  # of a head that is remembered; each connection may keep one
_SPECIAL_HEADERS: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade"})
_NAME: Final = b"\r\ncontent-length:"  # at the beginning of a line
_ZERO: Final = ord("0")


class KnownHead:
    """What a head says, and its bytes before and after the digits of its content-length."""

    __slots__ = ("_after", "_before", "head")

    def __init__(self, head: Head, before: bytes, after: bytes) -> None:
        self.head = head
        self._before = before
        self._after = after

    def measure(self, data: bytes) -> tuple[int, int]:
        """Where the body begins in `data` and how long it is to be, if this head stands there; else (0, 0)."""
        before, after = self._before, self._after
        start = len(before)
        end = data.find(b"\r", start, start + DIGITS_MAX + 1)
        digits = data[start:end] if end > start else b""
        if not digits.isdigit() or not data.startswith(after, end) or not data.startswith(before):
            return 0, 0
        if digits[0] == _ZERO and len(digits) > 1:
            return 0, 0
        return end + len(after), int(digits)


def remember(piece: bytes, head: Head, length: bytes, limit: int) -> KnownHead | None:
    """The head with which `piece` begins, if it can be recognised again; `length` is what the parser found to be declared.

    `limit` is that of heads in bytes: the longest that can be recognised must not be refused for its size.
    """
    raw = piece[: piece.find(b"\r\n\r\n", 0, KNOWN_BYTES) + 4]
    before, name, line = raw.lower().partition(_NAME)
    value, _, _ = line.partition(b"\r\n")
    lines = raw.count(b"\r\n")
    if not name or _NAME in line or raw.count(b"\r") != lines or raw.count(b"\n") != lines:
        return None
    if value.lstrip(b" \t") != length or not length.isdigit() or not _SPECIAL_HEADERS.isdisjoint(head.headers):
        return None
    if len(raw) + len(head.headers) + DIGITS_MAX > limit:
        return None  # a line is counted with a blank after its colon, whether it has one or not
    end = len(before) + len(name) + len(value)
    return KnownHead(head, raw[: end - len(length)], raw[end:])
