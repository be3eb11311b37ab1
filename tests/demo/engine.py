"""A real simulated engine for tests: `fairlane engine` in a process of its own, with its load read as Prometheus reads it."""

import contextlib
import http.client
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.caller import Answer, Call, request_bytes
from tests.harness import FAIRLANE
from tests.meters import until

Chunk = dict[str, Any]


class Engine:
    """A running engine."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()

    def open(self, body: object, path: str = "/v1/chat/completions") -> Call:
        """Send a request and return at once."""
        return Call(self.port, request_bytes(body, path=path))

    def post(self, body: object, path: str = "/v1/chat/completions") -> Answer:
        """Send a request and read its answer."""
        return self.open(body, path).finish()

    def load(self) -> dict[str, float]:
        """Return the metrics by name, each with the labels that vLLM gives it."""
        text = self.get("/metrics")[1].decode()
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        assert all(sample.labels == {"engine": "0", "model_name": "m"} for sample in samples)
        return {sample.name.removeprefix("vllm:"): sample.value for sample in samples}

    def is_idle(self) -> bool:
        """Tell whether nothing runs, waits or holds KV."""
        load = self.load()
        return not (load["num_requests_running"] or load["num_requests_waiting"] or load["kv_cache_usage_perc"])


@contextlib.contextmanager
def serving(folder: Path, *options: str) -> Iterator[Engine]:
    """Run an engine that serves the model `m`, and check that it ends cleanly."""
    said = folder / "engine.txt"
    with said.open("wb") as out:
        command = [FAIRLANE, "engine", "--listen", "127.0.0.1:0", "--model", "m", *options]
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        until(lambda: b"/v1;" in said.read_bytes() or process.poll() is not None, "the engine serves", 20)
        found = re.search(r"http://127\.0\.0\.1:(\d+)/v1", said.read_text())
        assert found, said.read_text()
        yield Engine(process, int(found[1]))
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert len(said.read_text().splitlines()) == 1, said.read_text()
    finally:
        process.kill()
        process.wait()


def events(body: bytes) -> list[Chunk]:
    """Return the JSON of each event of a stream, whose end is checked."""
    lines = [line.removeprefix("data: ") for line in body.decode().split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]
