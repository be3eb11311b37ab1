"""Lines of the log as they arrive at a real pipe, file, terminal or socket."""

import contextlib
import fcntl
import json
import logging
import os
import pty
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.core.values import Outcome
from fairlane.errors import Family, Reason
from fairlane.telemetry.log import CLIENT_LEFT, KEPT_BYTES_MAX, PATH_MAX, PIECE_BYTES, Log
from fairlane.telemetry.stdlib import LibraryLogs
from tests.telemetry.requests import past

NOON = datetime(2026, 3, 4, 12, 0, 0, 250000, UTC).timestamp()


class Pipe:
    """A pipe whose far end the test reads when it wants to."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        self.reader = os.fdopen(reader, "rb", buffering=0)
        self.writer: IO[bytes] = os.fdopen(writer, "wb", buffering=0)
        os.set_blocking(reader, False)

    def read(self) -> bytes:
        taken = b""
        while piece := self.reader.read(1 << 20):
            taken += piece
        return taken

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.read().splitlines()]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """A pipe of its own for each test."""
    made = Pipe()
    yield made
    made.reader.close()
    made.writer.close()


def fill(log: Log, line_bytes: int, lines: int) -> None:
    """Log this many lines of about this size."""
    for number in range(lines):
        log.info("filling", number=number, text="x" * line_bytes)


def drain(log: Log, pipe: Pipe) -> list[dict[str, Any]]:
    """Read and flush in turn until nothing is kept."""
    taken = pipe.read()
    while log.pending:
        log.flush()
        taken += pipe.read()
    return [json.loads(line) for line in taken.splitlines()]


def test_a_line_is_one_json_object(pipe: Pipe) -> None:
    """Event, time in UTC, level and fields come first and as given; a newline in a field stays inside its line."""
    log = Log(pipe.writer, clock=lambda: NOON)
    log.warning("engine_down", engine="a", problem='said "no"\nand left', after_s=1.5, path=Path("/tmp"), slots=None)
    log.flush()
    raw = pipe.read()
    assert raw.startswith(b'{"event":"engine_down","ts":"2026-03-04T12:00:00.250000Z","level":"warning","engine":"a",')
    assert raw.count(b"\n") == 1
    fields = json.loads(raw)
    assert fields["problem"] == 'said "no"\nand left'
    assert (fields["after_s"], fields["path"], fields["slots"]) == (1.5, "/tmp", None)


def test_nothing_is_written_before_the_flush(pipe: Pipe) -> None:
    """Logging makes no system call on the sink; one flush writes all lines in their order."""
    log = Log(pipe.writer)
    assert not log.pending
    fill(log, 10, 20)
    assert log.pending
    assert pipe.read() == b""
    log.flush()
    assert [line["number"] for line in pipe.lines()] == list(range(20))
    assert not log.pending


@pytest.mark.parametrize(("level", "seen"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_the_level_leaves_out_what_is_below_it(pipe: Pipe, level: str, seen: int) -> None:
    """The four levels are ordered, and the access line is of level info."""
    log = Log(pipe.writer, level)
    for write in (log.debug, log.info, log.warning, log.error):
        write("said")
    log.flush()
    lines = pipe.lines()
    assert [line["level"] for line in lines] == ["debug", "info", "warning", "error"][-seen:]
    log.request(past(), 0.001)
    log.flush()
    assert len(pipe.lines()) == (seen >= 3)


def test_an_unknown_level_is_refused(pipe: Pipe) -> None:
    """A level that does not exist is an error at the start, not silence."""
    with pytest.raises(ValueError, match="not in tuple"):
        Log(pipe.writer, "loud")


def test_the_access_line_has_its_fixed_fields(pipe: Pipe) -> None:
    """All fields are always there, unknown ones as null; times are in tenths of a millisecond."""
    log = Log(pipe.writer, clock=lambda: NOON)
    shed = past("req-1", caller="课程", cls="free", model="m:*{}%", status=429, outcome=Family.REJECTED, reason=Reason.QUEUE_FULL)
    log.request(shed, 0.000123456)
    log.flush()
    line = pipe.read()
    assert line.startswith(b'{"event":"request","ts":"2026-03-04T12:00:00.250000Z","level":"info","request_id":"req-1","tenant":')
    assert [json.loads(line)] == [
        {
            "event": "request",
            "ts": "2026-03-04T12:00:00.250000Z",
            "level": "info",
            "request_id": "req-1",
            "tenant": "课程",
            "class": "free",
            "model": "m:*{}%",
            "route": "/v1/chat/completions",
            "status": 429,
            "outcome": "rejected",
            "reason": "queue_full",
            "engine": None,
            "queue_ms": None,
            "ttft_ms": None,
            "total_ms": 0.1,
            "tokens_in": None,
            "tokens_out": None,
        }
    ]


def test_the_access_line_of_a_served_request_tells_all(pipe: Pipe) -> None:
    """Its engine, its times and its tokens stand in their fields, in a fixed order."""
    log = Log(pipe.writer, clock=lambda: NOON)
    served = past("req-2", caller="acme", cls="free", model="m", pool="main", engine="a", status=200, outcome=Outcome.COMPLETED)
    served.queue_s, served.ttft_s, served.tokens_in, served.tokens_out = 0.0, 1.00006, 10, 0
    log.request(served, 1234.5678949)
    log.flush()
    names = "event ts level request_id tenant class model route status outcome reason engine queue_ms ttft_ms total_ms tokens_in tokens_out"
    (line,) = pipe.lines()
    assert list(line) == names.split()
    values = ["free", "m", "/v1/chat/completions", 200, "completed", None, "a", 0.0, 1000.1, 1234567.9, 10, 0]
    assert list(line.values())[5:] == values


def test_the_access_line_of_a_request_that_gave_way_tells_how_often(pipe: Pipe) -> None:
    """Beside what it really used stands what was made for it in vain."""
    log = Log(pipe.writer)
    gave = past("req-3", status=200, outcome=Outcome.COMPLETED)
    gave.gave_way(100)
    gave.gave_way(103)
    log.request(gave, 1.0)
    log.flush()
    (line,) = pipe.lines()
    assert list(line.items())[-2:] == [("yields", 2), ("yielded_tokens", 203)]


def test_the_access_line_is_bounded_and_always_has_a_status(pipe: Pipe) -> None:
    """A client's path is cut, and a client that left before there was a status is told by one of our own."""
    log = Log(pipe.writer)
    for path in ("/" * PATH_MAX, "/" * (PATH_MAX + 1)):
        log.request(past(path=path), 0.0)
    log.flush()
    assert [(line["route"], line["status"]) for line in pipe.lines()] == [("/" * PATH_MAX, CLIENT_LEFT)] * 2


@given(st.floats(0, 1e6))
def test_times_are_tenths_of_a_millisecond(seconds: float) -> None:
    """A time is off by half a tenth at most, and has one decimal."""
    with Path(os.devnull).open("wb") as nowhere:
        log = Log(nowhere)
        log.request(past(queue_s=seconds, ttft_s=None), seconds)
        line = json.loads(log._kept)
    assert line["queue_ms"] == line["total_ms"] == round(line["total_ms"], 1)
    assert abs(line["total_ms"] - 1000 * seconds) <= 0.05 + 1e-6
    assert line["ttft_ms"] is None


def test_what_json_cannot_say_is_mended(pipe: Pipe) -> None:
    """A lone surrogate or a huge number changes its own field only."""
    log = Log(pipe.writer, clock=lambda: NOON)
    log.info("odd", name="a\ud800b", count=2**80, small=7)
    log.flush()
    (line,) = pipe.lines()
    assert (line["name"], line["count"], line["small"]) == ("a\\ud800b", str(2**80), 7)
    assert line["ts"] == "2026-03-04T12:00:00.250000Z"


def test_a_full_pipe_does_not_block(pipe: Pipe) -> None:
    """With nobody reading, a flush returns at once; when reading goes on, every line arrives whole and in order."""
    log = Log(pipe.writer)
    fcntl.fcntl(pipe.writer, fcntl.F_SETPIPE_SZ, 2 * PIECE_BYTES)
    fill(log, 1000, 100)
    began = time.monotonic()
    log.flush()
    assert time.monotonic() - began < 0.5
    assert log.pending
    assert [line["number"] for line in drain(log, pipe)] == list(range(100))
    assert log.dropped == 0
    assert os.get_blocking(pipe.writer.fileno()), "the mode of a shared file description was changed"


def test_a_line_longer_than_a_piece_arrives_whole(pipe: Pipe) -> None:
    """A line is cut at the pipe's room, and goes on where it was cut."""
    log = Log(pipe.writer)
    fcntl.fcntl(pipe.writer, fcntl.F_SETPIPE_SZ, PIECE_BYTES)
    fill(log, 3 * PIECE_BYTES, 3)
    log.flush()
    assert [(line["number"], len(line["text"])) for line in drain(log, pipe)] == [(number, 3 * PIECE_BYTES) for number in range(3)]


def test_a_full_non_blocking_pipe_keeps_lines(pipe: Pipe) -> None:
    """A file description that somebody made non-blocking is no error."""
    os.set_blocking(pipe.writer.fileno(), False)
    log = Log(pipe.writer)
    fill(log, 1000, 200)
    log.flush()
    assert log.pending
    assert len(drain(log, pipe)) == 200


def test_another_writer_may_be_faster(pipe: Pipe) -> None:
    """When another process takes the room between question and write, the non-blocking write fails and nothing is lost."""
    fcntl.fcntl(pipe.writer, fcntl.F_SETPIPE_SZ, PIECE_BYTES)
    os.set_blocking(pipe.writer.fileno(), False)
    log = Log(pipe.writer)
    stop = threading.Event()

    def compete() -> None:
        while not stop.is_set():
            with contextlib.suppress(BlockingIOError):
                os.write(pipe.writer.fileno(), b"\n" * PIECE_BYTES)

    rival = threading.Thread(target=compete)
    rival.start()
    try:
        filled, taken = 0, b""
        for _ in range(1000):
            if not log.pending:  # so that the bound on kept lines has no part in this
                fill(log, PIECE_BYTES, 1)
                filled += 1
            log.flush()
            taken += pipe.read().replace(b"\n", b"")
    finally:
        stop.set()
        rival.join()
    taken += pipe.read()
    while log.pending:
        log.flush()
        taken += pipe.read()
    assert log.dropped == 0
    assert taken.count(b'"event":"filling"') == filled > 1


def test_lines_above_the_bound_are_dropped_and_counted(pipe: Pipe) -> None:
    """Memory is bounded while nobody reads, and the log says afterwards how much it lost."""
    log = Log(pipe.writer)
    lines = KEPT_BYTES_MAX // 1000 + 50
    for _ in range(2):
        fill(log, 1000, lines)
        assert log.dropped > 0
        written = drain(log, pipe)
        assert written[-1]["event"] == "log_lines_dropped"
        assert written[-1]["total"] == log.dropped
        lines += 1
    log.info("after")
    assert [line["event"] for line in drain(log, pipe)] == ["after"]


def test_a_sink_that_is_gone_loses_lines_only(pipe: Pipe) -> None:
    """Once the reader has closed its end, logging goes on without error and keeps nothing."""
    log = Log(pipe.writer)
    pipe.reader.close()
    fill(log, 10, 5)
    log.flush()
    assert not log.pending
    assert log.dropped == 5
    log.flush()
    assert log.dropped == 5


def test_a_file_and_a_socket_take_lines(tmp_path: Path) -> None:
    """Standard error is a file under a shell's redirection, and a socket under systemd."""
    path = tmp_path / "log"
    with path.open("wb") as file:
        log = Log(file)
        fill(log, 1000, 500)
        log.flush()
        assert not log.pending
    assert len(path.read_bytes().splitlines()) == 500
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("wb") as sink:
        log = Log(sink)
        log.info("hello")
        log.flush()
        assert json.loads(theirs.recv(4096))["event"] == "hello"


def test_a_person_gets_a_readable_line() -> None:
    """On a terminal a line is plain text without empty fields, and a name in it can neither break the line nor move the cursor."""
    reader, writer = pty.openpty()
    with os.fdopen(reader, "rb", buffering=0) as screen, os.fdopen(writer, "wb", buffering=0) as terminal:
        log = Log(terminal, clock=lambda: NOON)
        log.warning("engine_down", engine="a", problem="timed out", model="\x1b[2J\nfake", reason=None, after_s=2)
        log.flush()
        shown = screen.read(4096).decode()
    clock = datetime.fromtimestamp(NOON).astimezone().strftime("%H:%M:%S")
    assert shown == f"{clock} warning engine_down engine=a problem='timed out' model='\\x1b[2J\\nfake' after_s=2\r\n"


def test_libraries_speak_through_the_log(pipe: Pipe) -> None:
    """A library's warning and traceback become lines of ours, its chatter does not, and its own mistakes raise nothing."""
    log = Log(pipe.writer)
    before = logging.root.handlers
    library = logging.getLogger("some.package")
    try:
        LibraryLogs(log).attach()
        library.info("chatter")
        library.warning("low on %s", "luck")
        library.warning("%d too few")
        library.warning("%d", "not a number")
        try:
            Path("/nowhere/at/all").stat()
        except OSError:
            library.exception("it failed")
    finally:
        logging.root.handlers = before
    log.flush()
    lines = pipe.lines()
    assert [(line["level"], line["logger"], line["message"]) for line in lines] == [
        ("warning", "some.package", "low on luck"),
        ("warning", "some.package", "%d too few"),
        ("warning", "some.package", "%d"),
        ("error", "some.package", "it failed"),
    ]
    assert "FileNotFoundError: " in lines[-1]["traceback"]
