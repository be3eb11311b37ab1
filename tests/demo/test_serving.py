"""`fairlane engine` as a process: its API, its load, and a gateway before it."""

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.caller import chat, finish
from tests.demo.engine import Chunk, Engine, events, serving
from tests.harness import FAIRLANE, Gateway, settings
from tests.meters import until

EXACT = {"ignore_eos": True}


def exactly(tokens: int, text: str = "hi", *, stream: bool = False) -> dict[str, object]:
    """Make the body of a chat completion whose answer has so many tokens."""
    return chat(text, max_tokens=tokens, stream=stream, ignore_eos=True)


def spoken(chunks: list[Chunk]) -> str:
    """Return the text of a stream."""
    return "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks if chunk["choices"])


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Give an engine that is ten times as fast as the model."""
    with serving(tmp_path_factory.mktemp("engine"), "--speed", "10") as server:
        yield server
        until(server.is_idle, "the engine is idle")


def test_openai_client_plain(engine: Engine) -> None:
    """The official client gets a whole answer of both kinds, with one word a token and the usage of both."""
    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as client:
        said = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 40}], max_tokens=30, extra_body=EXACT)
        assert said.usage
        assert (said.usage.prompt_tokens, said.usage.completion_tokens, said.usage.total_tokens) == (10, 30, 40)
        assert said.choices[0].finish_reason == "length"
        assert len((said.choices[0].message.content or "").split(" ")) == 30
        text = client.completions.create(model="m", prompt="x" * 7, max_tokens=3, extra_body=EXACT)
        assert text.choices[0].text == "lorem ipsum dolor"
        assert text.usage
        assert text.usage.prompt_tokens == 2
        assert [model.id for model in client.models.list()] == ["m"]


def test_openai_client_streamed(engine: Engine) -> None:
    """The official client gets a stream of both kinds that makes the same text, with the usage at the end if it asks."""
    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "hello"}],
            max_completion_tokens=25,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=EXACT,
        )
        chunks = list(stream)
        usage = chunks.pop().usage
        assert usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (2, 25)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert len(text.split(" ")) == 25
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["length"]
        assert chunks[0].choices[0].delta.role == "assistant"
        words = client.completions.create(model="m", prompt="x", max_tokens=3, stream=True, extra_body=EXACT)
        assert "".join(word.choices[0].text for word in words) == "lorem ipsum dolor"


def test_answers_end_by_themselves(engine: Engine) -> None:
    """Without `ignore_eos` an answer is as long as its draw; shorter than its bound, it stops, and words, chunks and usage agree."""
    answer = engine.post(chat(max_tokens=100_000, stream=True, stream_options={"include_usage": True}))
    *chunks, last = events(answer.body)
    text = spoken(chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert len(text.split(" ")) == last["usage"]["completion_tokens"]
    assert last["choices"] == []
    assert all(chunk["usage"] is None for chunk in chunks)


def test_the_seed_gives_the_lengths(tmp_path: Path) -> None:
    """Two engines with one seed answer the same requests at the same lengths, another seed gives others."""
    lengths = []
    for seed in ("5", "5", "6"):
        with serving(tmp_path, "--speed", "1000", "--seed", seed) as server:
            bodies = [server.post(chat(max_tokens=1000)).json() for _ in range(5)]
        lengths.append([body["usage"]["completion_tokens"] for body in bodies])
    assert lengths[0] == lengths[1] != lengths[2]


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"{", 400, "invalid_request", None),
        ({"model": "m"}, 400, "invalid_request", "messages"),
        (chat("x" * 640_000), 400, "context_length_exceeded", None),
        (chat(max_tokens=160_000), 400, "context_length_exceeded", None),
        (chat() | {"model": "other"}, 404, "model_not_found", "model"),
    ],
)
def test_refusals(engine: Engine, body: object, status: int, code: str, param: str | None) -> None:
    """What cannot be served is refused at once with an error in OpenAI's shape."""
    answer = engine.post(body)
    assert (answer.status, answer.code, answer.json()["error"]["param"]) == (status, code, param)
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_pages(engine: Engine) -> None:
    """Health and the list of models are there, other paths and methods are refused in OpenAI's shape."""
    assert engine.get("/health") == (200, b"")
    card = json.loads(engine.get("/v1/models")[1])["data"][0]
    assert (card["id"], card["max_model_len"], card["max_num_seqs"]) == ("m", 160_000, 256)
    assert engine.post({}, "/v1/embeddings").code == "not_found"
    assert engine.post({}, "/v1/models").code == "method_not_allowed"
    status, body = engine.get("/v1/chat/completions")
    assert (status, json.loads(body)["error"]["code"]) == (405, "method_not_allowed")


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnect_frees_the_engine(engine: Engine, stream: bool) -> None:
    """A client that hangs up while its request runs takes it and its KV out of the engine, long before its answer would have ended."""
    call = engine.open(exactly(150_000, "x" * 4000, stream=stream))
    until(lambda: engine.load()["kv_cache_usage_perc"] > 1000 / 160_000, "the prompt is computed")
    assert engine.load()["num_requests_running"] == 1
    call.close()
    until(engine.is_idle, "the engine is idle")


def test_a_body_that_is_broken_off(tmp_path: Path) -> None:
    """A client that leaves in the middle of its body leaves nothing behind, nor a word on the engine's terminal."""
    with serving(tmp_path) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as half:
            half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
        assert server.post(exactly(1)).status == 200
        assert server.is_idle()


def test_requests_wait_inside(tmp_path: Path) -> None:
    """What comes when as many run as may is counted as waiting, until a place is free."""
    with serving(tmp_path, "--running-max", "1") as server:
        first, second = (server.open(exactly(100_000, stream=True)) for _ in range(2))
        until(lambda: server.load()["num_requests_waiting"] == 1, "one waits")
        assert server.load()["num_requests_running"] == 1
        first.close()
        until(lambda: server.load()["num_requests_waiting"] == 0, "it runs")
        second.close()
        until(server.is_idle, "the engine is idle")


def test_requests_are_preempted(tmp_path: Path) -> None:
    """Where KV runs out some requests are preempted, and all get their whole answers."""
    with serving(tmp_path, "--kv-tokens", "320") as server:
        calls = [server.open(exactly(100, "x" * 80)) for _ in range(6)]
        assert [answer.json()["usage"]["completion_tokens"] for answer in finish(calls)] == [100] * 6
        assert server.load()["num_preemptions_total"] > 0
        until(server.is_idle, "the engine is idle")


def test_a_gateway_serves_through_it(engine: Engine, tmp_path: Path) -> None:
    """A gateway with an engine of kind `simulated` learns its slots, passes answers on, and a client that leaves frees both."""
    entry = {"name": "e0", "kind": "simulated", "url": engine.url, "probe_s": 0.2}
    with Gateway(settings([entry]), tmp_path) as gateway:
        assert json.loads(gateway.admin("/admin/state")[1])["engines"][0]["slots"] == 256
        plain, streamed = (gateway.post(exactly(20, stream=stream)) for stream in (False, True))
        assert plain.json()["usage"]["completion_tokens"] == 20
        assert spoken(events(streamed.body)) == plain.json()["choices"][0]["message"]["content"]
        call = gateway.open(exactly(100_000, stream=True))
        until(lambda: engine.load()["num_requests_running"] == 1, "the engine runs it")
        call.close()
        until(engine.is_idle, "the engine is idle")
        gateway.assert_idle()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_mid_answer(tmp_path: Path, number: int) -> None:
    """Both signals end it at once with code 0, whatever runs; the client sees that its answer is not whole."""
    with serving(tmp_path) as server:
        call = server.open(exactly(100_000, stream=True))
        until(lambda: server.load()["num_requests_running"] == 1, "the engine runs it")
        server.process.send_signal(number)
        assert not call.finish().whole
        assert server.process.wait(10) == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--kv-tokens", "0"], "argument --kv-tokens: '0' is no whole number of at least 1"),
        (["--kv-tokens", "15"], "--kv-tokens must be at least 16, which is one block"),
        (["--running-max", "2048"], "--running-max (2048) must be below --step-tokens (2048)"),
        (["--step-ms", "0"], "argument --step-ms: must be above 0"),
        (["--speed", "inf"], "argument --speed: 'inf' is no number of at least 0"),
        (["--prefill-us-per-token", "-1"], "argument --prefill-us-per-token: '-1' is no number of at least 0"),
        (["--listen", "8100"], "--listen 8100: must be HOST:PORT, such as 127.0.0.1:8080"),
        (["--model", ""], "argument --model: a model needs a name in printable characters"),
        (["--seeds", "1"], "unrecognized arguments: --seeds 1"),
    ],
)
def test_wrong_options_are_refused(options: list[str], told: str) -> None:
    """A wrong option ends the command with code 2, and is told in one line."""
    refused(options, told)


def test_a_port_in_use_is_told(engine: Engine) -> None:
    """A second engine on one port ends with code 2 and names the option."""
    place = f"127.0.0.1:{engine.port}"
    refused(["--listen", place], f"cannot listen on {place}: address already in use; use --listen HOST:PORT")


def refused(options: list[str], told: str) -> None:
    """Run the command and check that it ends with code 2 and these words."""
    done = subprocess.run([FAIRLANE, "engine", *options], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
