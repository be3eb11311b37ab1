"""Counting what an event stream says, without parsing it: output events, the last usage object, an error at the start.

The format is the WHATWG event stream: lines end with LF, CRLF or CR, an empty line ends an event, `data` lines of one
event are joined, comments and other fields mean nothing here. Pieces may be cut anywhere.

Engines send one event in one piece, so the common piece is one or more whole events of a single `data:` line each. That is
recognised by three counts over the bytes; such a piece is searched for a usage object and no more. Every other piece goes
line by line. Quotes inside JSON strings are escaped, so text that a model writes cannot look like the key "usage".
"""

import re
from typing import Any

import orjson

LINE_BYTES = 256 * 1024  # of one line, or of one event's data, that are kept; what is longer is counted, not read

_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n|\Z)){2}|\r\r")  # a lone \r at the end may be half of a \r\n
_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_DONE = (b"data: [DONE]\n\n", b"data:[DONE]\n\n")
_BOM = b"\xef\xbb\xbf"


class StreamMeter:
    """Meters one stream. `events` counts data events that carry output: not `[DONE]`, not a chunk with usage alone.

    `begun` turns true with the first complete data event; if that is an error object, `error` holds it.
    """

    __slots__ = ("_aligned", "_data", "_data_bytes", "_rest", "_skip_lf", "_start", "_usage_json", "begun", "error", "events")

    def __init__(self) -> None:
        self.events = 0
        self.begun = False
        self.error: dict[str, Any] | None = None
        self._usage_json = b""
        self._rest = bytearray()  # an unfinished line
        self._data: list[bytes] = []  # data lines of an unfinished event
        self._data_bytes = 0
        self._skip_lf = False  # the last piece ended with CR: an LF that follows belongs to it
        self._aligned = False  # begun, and at the start of an event: the next piece may be counted without being read
        self._start = True  # nothing but a part of a BOM has come

    @property
    def between_events(self) -> bool:
        """The stream is not in the middle of an event: another may be put in."""
        return not self._rest and not self._data

    @property
    def usage(self) -> dict[str, Any] | None:
        """The last usage object that was seen; it is parsed when asked for."""
        if not self._usage_json:
            return None
        try:
            event = orjson.loads(self._usage_json)
        except orjson.JSONDecodeError:
            return None
        return find_usage(event)

    def feed(self, data: bytes) -> None:
        """Take the next piece of the stream's payload; what is whole events of one data line each needs only to be counted."""
        if not (self._aligned and data.startswith(b"data:") and data.endswith(b"\n\n")) or data.find(b"\r") >= 0:
            self._feed_lines(data)
            return
        events = 1
        if data.find(b"\n") != len(data) - 2:  # more than one line
            events = data.count(b"\n\n")
            if data.count(b"\n") != 2 * events or data.count(b"\n\ndata:") != events - 1:
                self._feed_lines(data)
                return
        self.events += events
        if data.endswith(_DONE):
            self.events -= 1
        if data.find(b'"usage"') >= 0 and _USAGE.search(data):
            self._note_usage(data)

    def _note_usage(self, data: bytes) -> None:
        """Remember the line with the last usage object of a piece of whole single-line events."""
        last = None
        for last in _USAGE.finditer(data):
            if self._is_usage_alone(data, last.start()):
                self.events -= 1
        if last is not None:
            start = data.rfind(b"\n", 0, last.start()) + 1
            self._usage_json = data[start + 5 : data.find(b"\n", last.end())]

    def _is_usage_alone(self, data: bytes, at: int) -> bool:
        return _NO_CHOICES.search(data, data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)) is not None

    def _feed_lines(self, data: bytes) -> None:
        if self._start:
            data = self._strip_bom(data)
        if self._skip_lf and data:
            self._skip_lf = False
            if data.startswith(b"\n"):
                data = data[1:]
        if b"\r" in data:
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in data:
            self._keep(data)
            self._aligned = self._aligned and not data
            return
        lines = data.split(b"\n")
        if self._rest:
            self._keep(lines[0])
            lines[0] = bytes(self._rest)
            self._rest.clear()
        rest = lines.pop()
        for line in lines:
            if line:
                self._take_field(line)
            elif self._data:
                self._dispatch()
        self._keep(rest)
        self._aligned = self.begun and not (rest or self._data or self._skip_lf)

    def _strip_bom(self, data: bytes) -> bytes:
        """Drop a byte order mark, which may itself come in parts."""
        data = bytes(self._rest) + data
        self._rest.clear()
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._rest += data
            return b""
        self._start = False
        return data.removeprefix(_BOM)

    def _keep(self, data: bytes) -> None:
        room = LINE_BYTES - len(self._rest)
        self._rest += data if len(data) <= room else data[:room]

    def _take_field(self, line: bytes) -> None:
        """Collect a data line. Old llama.cpp servers send errors in a field `error` of their own: that is data here."""
        name, _, value = line.partition(b":")
        if name not in (b"data", b"error"):
            return
        self._data_bytes += len(line)
        if self._data_bytes <= LINE_BYTES or not self._data:
            self._data.append(value.removeprefix(b" "))
        if name == b"error":
            self._data = [b'{"error":%b}' % value]

    def _dispatch(self) -> None:
        payload = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data = []
        self._data_bytes = 0
        if not self.begun:
            self.begun = True
            self.error = _read_error(payload)
        if self.error is not None or not payload or payload.strip() == b"[DONE]":
            return
        if _USAGE.search(payload):
            self._usage_json = payload
            if _NO_CHOICES.search(payload):
                return
        self.events += 1


def find_usage(event: object) -> dict[str, Any] | None:
    """Find the usage object of an answer or event, where each API keeps it."""
    if not isinstance(event, dict):
        return None
    for place in (event, event.get("response"), event.get("message")):
        if isinstance(place, dict) and isinstance(place.get("usage"), dict):
            usage: dict[str, Any] = place["usage"]
            return usage
    return None


def _read_error(payload: bytes) -> dict[str, Any] | None:
    """Read the first event as an error object: `{"error": ...}`, or the older `{"object": "error", ...}`."""
    if b'"error"' not in payload:
        return None
    try:
        event = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return None
    if isinstance(event, dict) and (event.get("error") or event.get("object") == "error"):
        return event
    return None


class UsageFilter:
    """Takes the event that holds nothing but the usage out of a stream whose client did not ask for it.

    Whole events pass as they came. The beginning of an event waits for its end, but never more than `LINE_BYTES` of it: what
    is longer is no usage, and passes.
    """

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> bytes:
        """The next piece of the stream as the client may see it; empty where nothing is certain yet."""
        if not self._pending and data.endswith((b"\n\n", b"\r\n\r\n")) and (data.find(b'"usage"') < 0 or not _USAGE.search(data)):
            return data
        data = self._pending + data
        end = 0
        for boundary in _EVENT_END.finditer(data):
            end = boundary.end()
        self._pending = data[end:]
        if len(self._pending) > LINE_BYTES:
            self._pending, end = b"", len(data)
        return self._whole_events(data[:end])

    def rest(self) -> bytes:
        """What is left at the end of the stream."""
        data, self._pending = self._pending, b""
        return data

    @staticmethod
    def _whole_events(data: bytes) -> bytes:
        if b'"usage"' not in data:
            return data
        kept, start = [], 0
        for boundary in _EVENT_END.finditer(data):
            event = data[start : boundary.end()]
            start = boundary.end()
            if not (_USAGE.search(event) and _NO_CHOICES.search(event)):
                kept.append(event)
        return b"".join(kept) + data[start:]
