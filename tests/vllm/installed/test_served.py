"""The plugin in vLLM's own server, over HTTP: what a request says in `vllm_xargs` decides when it runs."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from scripts.tiny_model import write

START_S = 400  # three processes import vLLM one after the other
STEP_S = 30


def until(seen: str, url: str, seconds: float, server: subprocess.Popen[bytes]) -> str:
    """The page once it holds what is to be seen (a pattern); fails when the server ends, or after so long."""
    ends_at, page = time.monotonic() + seconds, ""
    while time.monotonic() < ends_at:
        assert server.poll() is None
        try:
            with urlopen(url, timeout=STEP_S) as answer:
                page = str(answer.read(), "utf-8")
        except (URLError, ConnectionError):
            page = ""
        else:
            if re.search(seen, page):
                return page
        time.sleep(0.02)
    raise AssertionError(f"{url} never showed {seen}:\n{page[-2000:]}")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server with one place and our scheduler."""
    folder = tmp_path_factory.mktemp("served")
    write(folder / "model")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = "--load-format dummy --enforce-eager --max-num-seqs 1 --max-model-len 8192 --kv-cache-memory-bytes 67108864"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder / "model"), *options.split()]
    command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--scheduler-cls", "fairlane.vllm_plugin.FairlaneScheduler"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, env=os.environ | {"VLLM_LOGGING_LEVEL": "INFO"}, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        until("", f"{url}/health", START_S, server)
        yield url, server
    finally:
        server.terminate()
        server.wait(60)
        sys.stdout.write((folder / "log").read_text(errors="replace")[-5000:])  # shown where something fails


def body(tokens: int, **said: object) -> bytes:
    """A completion of exactly so many tokens; it says to the scheduler what is named besides."""
    told = {f"fairlane_{name}": value for name, value in said.items()}
    return json.dumps({"model": "tiny", "prompt": "abc", "max_tokens": tokens, "ignore_eos": True, "vllm_xargs": told}).encode()


def post(url: str, data: bytes) -> Request:
    """A request for a completion."""
    return Request(f"{url}/v1/completions", data, {"content-type": "application/json"})


@pytest.mark.timeout(START_S + 120)
def test_what_a_request_says_decides_when_it_runs(served: tuple[str, subprocess.Popen[bytes]]) -> None:
    """Behind a running request batch jobs wait, then paid and realtime ones come: they run by class, and nothing is lost."""
    url, server = served
    ended: list[str] = []

    def ask(name: str, rank: int) -> int:
        with urlopen(post(url, body(64, **{"class": rank, "tenant": name})), timeout=120) as answer:
            told = json.load(answer)
        ended.append(name)
        tokens: int = told["usage"]["completion_tokens"]
        return tokens

    blocker = urlopen(post(url, body(8000, **{"class": 3})[:-1] + b', "stream": true}'), timeout=120)
    assert blocker.readline().startswith(b"data: ")
    with ThreadPoolExecutor(8) as clients:
        asked = []
        for waiting, (name, rank) in enumerate([("batch-1", 3), ("batch-2", 3), ("free", 2), ("paid", 1), ("realtime", 0)], 1):
            asked.append(clients.submit(ask, name, rank))
            until(rf"(?m)^vllm:num_requests_waiting\{{.*\}} {waiting}\.0$", f"{url}/metrics", STEP_S, server)
        blocker.close()  # its place becomes free
        assert [one.result() for one in asked] == [64] * 5
    assert ended[0] == "realtime"
    assert sorted(ended[1:3]) == ["free", "paid"]
    assert sorted(ended[3:]) == ["batch-1", "batch-2"]


@pytest.mark.timeout(START_S + 120)
def test_nonsense_is_served_like_nothing(served: tuple[str, subprocess.Popen[bytes]]) -> None:
    """Fields of the wrong type, or too large, do not stop the engine."""
    url, _ = served
    for said in ({"class": "first", "tenant": 5, "cost": -1, "key": "soon", "output": [1, 2]}, {"class": 99, "key": 1e308}, {}):
        with urlopen(post(url, body(3, **said)), timeout=120) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 3
