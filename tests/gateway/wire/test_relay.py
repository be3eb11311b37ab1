"""An engine's answer on its way to the client: what passes, what stays behind, and when."""

import asyncio
import gzip
import json

import pytest

from fairlane.gateway.wire import relay as module
from tests.gateway.wire.passages import DONE, EVENTS, LAST, REPLY, STREAM_HEAD, USAGE, USAGE_EVENT, Gateway, event, framed, plain, through
from tests.gateway.wire.sockets import Peer, says, until

# What passes.


@pytest.mark.parametrize(
    "pieces", [[STREAM_HEAD, *framed(*EVENTS, USAGE_EVENT, DONE), LAST], [STREAM_HEAD + b"".join(framed(REPLY)) + LAST]]
)
def test_a_stream_passes_whole(pieces: list[bytes]) -> None:
    """Every byte of the events, once, with the usage and the count known, on kept connections at both ends."""

    async def test(made: Gateway) -> None:
        client = await made.client()
        for round_ in (1, 2):
            answer = await client.answer()
            assert (answer.status, answer.body, answer.cut) == (200, REPLY, False)
            relay = await made.over(round_)
            assert (relay.status, relay.completed, relay.failure, relay.events, relay.usage) == (200, True, None, 3, USAGE)
            assert (relay.refused, relay.unsent, relay.started) == (False, False, True)
            assert relay.first_byte_at is not None
            await made.ask(client)
        await made.over(3)
        assert made.engine.connections == 1

    through(says(*pieces), test)


@pytest.mark.parametrize("text", [REPLY, REPLY.replace(b"\n", b"\r\n"), REPLY.replace(b"\n", b"\r"), b"\xef\xbb\xbf: hi\n\n" + REPLY])
def test_fc_19_fc_20_every_framing_passes_in_single_bytes(text: bytes) -> None:
    """One byte in a chunk, one byte in a segment: the same bytes, the same figures."""
    raw = STREAM_HEAD + b"".join(framed(text)) + LAST
    tiny = STREAM_HEAD + b"".join(framed(*(text[i : i + 1] for i in range(len(text))))) + LAST

    async def test(made: Gateway) -> None:
        answer = await (await made.client()).answer()
        assert (answer.body, answer.cut) == (text, False)
        relay = await made.over()
        assert (relay.events, relay.usage) == (3, USAGE)

    through(says(*(raw[i : i + 1] for i in range(len(raw)))), test)
    through(says(*(tiny[i : i + 7] for i in range(0, len(tiny), 7))), test)


def test_fc_19_a_stream_passes_cut_at_every_offset() -> None:
    """Two segments, every place: one connection, the same bytes each time."""
    raw = STREAM_HEAD + b"".join(framed(EVENTS[0], USAGE_EVENT + DONE)) + LAST
    cuts = iter(range(1, len(raw)))

    async def script(peer: Peer) -> None:
        while await peer.request():
            cut = next(cuts)
            await peer.send(raw[:cut], raw[cut:])

    async def test(made: Gateway) -> None:
        client = await made.client()
        for round_ in range(1, len(raw)):
            answer = await client.answer()
            assert (answer.body, answer.cut) == (EVENTS[0] + USAGE_EVENT + DONE, False)
            relay = await made.over(round_)
            assert (relay.events, relay.usage, relay.completed) == (1, USAGE, True)
            if round_ < len(raw) - 1:
                await made.ask(client)
        assert made.engine.connections == 1

    through(script, test)


def test_a_plain_answer_passes_with_its_length() -> None:
    """Status, type, length and body as the engine sent them; its usage is read."""
    body = json.dumps({"choices": [{"message": {"content": '"usage": {"x": 1}'}}], "usage": USAGE}).encode()

    async def test(made: Gateway) -> None:
        for stream in (False, True):
            answer = await (await made.client(stream=stream)).answer()
            assert (answer.status, answer.body) == (200, body)
            assert answer.headers == {
                "content-type": "application/json",
                "x-fairlane-class": "free",
                "content-length": str(len(body)),
            }
        relay = await made.over(2)
        assert (relay.status, relay.completed, relay.usage, relay.events) == (200, True, USAGE, 0)

    through(says(plain(body)), test)


def test_a_small_plain_answer_is_one_write() -> None:
    """Head and body that came in one piece leave in one piece."""

    async def test(made: Gateway) -> None:
        pieces: list[bytes] = []

        class Watching(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                pieces.append(data)

        transport, _ = await asyncio.get_running_loop().create_connection(Watching, "127.0.0.1", made.listener.port)
        for path, end in ((b"/plain", b"{}"), (b"/stream", LAST)):
            pieces.clear()
            transport.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}" % path)
            await until(lambda end=end: pieces and pieces[-1].endswith(end))  # type: ignore[misc]
            assert len(pieces) == 1
        transport.close()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(plain(b"{}"))
        await peer.request()
        await peer.send(STREAM_HEAD + b"".join(framed(REPLY)) + LAST)
        await peer.request()

    through(script, test)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"".join(framed(b'{"a":', b"1}"))
        + LAST,
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + b'{"a":1}',
    ],
)
def test_a_plain_answer_without_a_length_is_chunked(answer: bytes) -> None:
    """What has no length from the engine is framed anew, whole for the client in every version of HTTP."""

    async def test(made: Gateway) -> None:
        got = await (await made.client(stream=False)).answer()
        assert (got.body, got.cut, got.headers["transfer-encoding"]) == (b'{"a":1}', False, "chunked")
        got = await (await made.client(stream=False, version=b"1.0")).answer()
        assert (got.body, got.headers["connection"]) == (b'{"a":1}', "close")

    through(says(answer, then="close"), test)


@pytest.mark.parametrize("size", [1000, 70_000, 3 << 20])
def test_usage_is_found_at_the_end_of_any_body(size: int) -> None:
    """Embeddings are long: their usage is read from the end, however it is cut."""
    body = json.dumps({"data": [{"embedding": "é" * size}], "model": "m", "usage": USAGE}, ensure_ascii=False).encode()

    async def test(made: Gateway) -> None:
        answer = await (await made.client(stream=False)).answer()
        assert answer.body == body
        relay = await made.over()
        assert relay.usage == USAGE
        assert relay._tail is None or relay._tail.size < module.TAIL_BYTES + 512 * 1024

    through(says(plain(body)), test)


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"usage": 7}', b'{"usage": {', b"[]", b'{"usage": null}', b"x" * 70_000 + b'"usage": {', b"\xff\xfe"]
)
def test_a_body_without_usage_has_none(body: bytes) -> None:
    """Whatever an engine says instead of JSON passes unread."""

    async def test(made: Gateway) -> None:
        answer = await (await made.client(stream=False)).answer()
        assert answer.body == body
        assert (await made.over()).usage is None

    through(says(plain(body)), test)


@pytest.mark.parametrize("status", [b"400 Bad Request", b"401 Unauthorized", b"429 Too Many Requests", b"500 Oops", b"503 Busy"])
def test_fc_09_fc_10_an_engines_error_passes_unchanged(status: bytes) -> None:
    """Status, type, Retry-After and body, for streams too."""
    body = b'{"error": {"message": "no", "code": 1}}'

    async def test(made: Gateway) -> None:
        for stream in (True, False):
            answer = await (await made.client(stream=stream)).answer()
            assert (answer.status, answer.body) == (int(status[:3]), body)
            assert answer.headers["retry-after"] == "Wed, 21 Oct 2099 07:28:00 GMT"
            assert answer.headers["content-type"] == "application/json"
            relay = await made.over()
            assert (relay.completed, relay.refused, relay.status) == (True, False, int(status[:3]))

    through(says(plain(body, status, b"Retry-After: Wed, 21 Oct 2099 07:28:00 GMT")), test)


def test_fc_25_a_compressed_body_passes_untouched() -> None:
    """Bytes, length and encoding stay together; a compressed stream is passed without being held or read."""
    body = gzip.compress(json.dumps({"usage": USAGE}).encode())
    zipped = gzip.compress(REPLY)

    async def test(made: Gateway) -> None:
        answer = await (await made.client(stream=False)).answer()
        assert (answer.body, answer.headers["content-encoding"], answer.headers["content-length"]) == (body, "gzip", str(len(body)))

    through(says(plain(body, b"200 OK", b"Content-Encoding: gzip")), test)

    async def streamed(made: Gateway) -> None:
        answer = await (await made.client()).answer()
        assert (answer.body, answer.headers["content-encoding"]) == (zipped, "gzip")
        assert (await made.over()).completed

    head = STREAM_HEAD.replace(b"Transfer", b"Content-Encoding: gzip\r\nTransfer")
    through(says(head, *framed(zipped[:20], zipped[20:]), LAST), streamed)


def test_fc_48_what_is_the_engines_own_stays_behind() -> None:
    """Hop-by-hop headers, what Connection names, cookies, the server's name, our own names and cross-origin rules."""
    hidden = [
        b"Connection: keep-alive, X-Secret",
        b"X-Secret: 1",
        b"Keep-Alive: timeout=5",
        b"Server: uvicorn",
        b"Set-Cookie: a=b",
        b"X-Request-Id: theirs",
        b"X-Fairlane-Class: theirs",
        b"Access-Control-Allow-Origin: *",
        b"Trailer: x",
        b"Proxy-Authenticate: Basic",
        b"Upgrade: h2c",
    ]

    async def test(made: Gateway) -> None:
        answer = await (await made.client(stream=False)).answer()
        assert answer.headers == {
            "content-type": "application/json",
            "date": "now",
            "x-kept": "1",
            "x-fairlane-class": "free",
            "content-length": "2",
        }

    through(says(plain(b"{}", b"200 OK", b"Date: now", *hidden, b"X-Kept: 1")), test)


# Events as they come.


def test_fc_23_each_event_is_passed_on_at_once() -> None:
    """The head comes with the first event, and every event within moments of leaving the engine."""
    sent: list[float] = []

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM_HEAD)
        for each in EVENTS:
            await asyncio.sleep(0.06)
            sent.append(asyncio.get_running_loop().time())
            await peer.send(*framed(each))
        await asyncio.sleep(0.06)
        await peer.send(LAST)
        await peer.request()

    async def test(made: Gateway) -> None:
        client = await made.client()
        head = await client.line_block()
        for name in (b"cache-control: no-cache", b"x-accel-buffering: no"):
            assert name + b"\r\n" in head
        assert b"content-encoding" not in head
        for index, chunk in enumerate(framed(*EVENTS)):
            assert await client.reader.readexactly(len(chunk)) == chunk
            assert len(sent) == index + 1
            assert asyncio.get_running_loop().time() - sent[index] < 0.05
        assert await client.reader.readexactly(len(LAST)) == LAST

    through(script, test)


def test_headers_against_buffering_are_kept_if_the_engine_sets_them() -> None:
    """They are added only where they are missing."""
    head = STREAM_HEAD.replace(b"Transfer", b"Cache-Control: no-store\r\nX-Accel-Buffering: yes\r\nTransfer")

    async def test(made: Gateway) -> None:
        answer = await (await made.client()).answer()
        assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-store", "yes")

    through(says(head, *framed(REPLY), LAST), test)


def test_the_head_of_a_stream_waits_for_the_first_event() -> None:
    """Comments, and half an event, are no reason to promise a 200; they pass with the event."""

    async def test(made: Gateway) -> None:
        client = await made.client()
        await until(lambda: made.relays and made.relays[0]._unsent_head)
        await asyncio.sleep(0.02)
        assert not made.relays[0].started
        assert made.relays[0].first_byte_at is None
        gate.set()
        assert (await client.answer()).body == b": ping\n\n" + REPLY

    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM_HEAD, *framed(b": ping\n\n", REPLY[:9]))
        await gate.wait()
        await peer.send(*framed(REPLY[9:]), LAST)
        await peer.request()

    through(script, test)


@pytest.mark.parametrize("body", [b"", b": nothing\n\n", b"data: half an event\n"])
def test_a_stream_without_an_event_is_still_an_answer(body: bytes) -> None:
    """An engine that ends properly before any event is believed."""

    async def test(made: Gateway) -> None:
        answer = await (await made.client()).answer()
        assert (answer.status, answer.body, answer.cut) == (200, body, False)
        assert (await made.over()).completed

    through(says(STREAM_HEAD, *framed(*([body] if body else [])), LAST), test)


def test_what_is_held_back_is_bounded() -> None:
    """A first event without end is passed on rather than collected."""
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM_HEAD, *framed(b"data: ", *[b"x" * 65536] * 20))
        await gate.wait()
        await peer.send(LAST)
        await peer.request()

    async def test(made: Gateway) -> None:
        client = await made.client()
        await until(lambda: made.relays and made.relays[0].started)
        gate.set()
        answer = await client.answer()
        assert (answer.status, len(answer.body)) == (200, 6 + 20 * 65536)
        assert (await made.over()).completed

    through(script, test)


@pytest.mark.parametrize(
    ("first", "status"),
    [
        (b'data: {"error":{"message":"full","code":503}}\n\n', 503),
        (b': hi\n\ndata: {"error":{"message":"full","code":"queue_full"}}\n\n', 502),
        (b'data: {"object":"error","message":"bad","code":400}\n\n', 400),
        (b'data: {"error":"broken"}\n\n', 502),
        (b'data: {"error":{"code":200}}\n\n', 502),
    ],
)
def test_an_error_in_the_first_event_is_a_real_status(first: bytes, status: int) -> None:
    """It becomes an ordinary JSON answer, the rest of the stream is not waited for, and the client's connection lives on."""

    async def test(made: Gateway) -> None:
        client = await made.client()
        answer = await client.answer()
        assert (answer.status, answer.headers["content-type"], answer.headers["x-fairlane-class"]) == (status, "application/json", "free")
        assert json.loads(answer.body) == json.loads(first[first.index(b"{") :])
        relay = await made.over()
        assert (relay.refused, relay.status, relay.failure, relay.events, relay.completed) == (True, status, None, 0, False)
        assert made.pool.open_connections == 0
        await made.ask(client)
        assert (await client.answer()).status == status

    through(says(STREAM_HEAD, *framed(first)), test)


def test_fc_16_usage_null_in_every_chunk_is_no_usage() -> None:
    """The count of events stands in."""
    body = b"".join(event(text, usage=None) for text in "abc") + DONE

    async def test(made: Gateway) -> None:
        assert (await (await made.client()).answer()).body == body
        relay = await made.over()
        assert (relay.usage, relay.events) == (None, 3)

    through(says(STREAM_HEAD, *framed(body), LAST), test)
