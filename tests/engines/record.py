"""Records the pages of real engines that the adapters' tests read: of llama.cpp by `python -m tests.engines.record`, of a vLLM that
runs, best while requests wait in it, by `python -m tests.engines.record URL`.

The names carry the version, so that a new one is recorded beside the old one. Pages of engines that could not be run are written
from their documentation, and their names say so.
"""

import asyncio
import contextlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fairlane.engines import embedded, weights

PAGES = Path(__file__).parent / "pages"
VERSION = importlib.metadata.version("xllamacpp")
NAMES = {"/health": "health.json", "/props": "props.json", "/v1/models": "models.json", "/metrics": "metrics.txt"}
LOADING, BUSY = "loading.json", "metrics-busy.txt"


def page(name: str) -> bytes:
    """Return a recorded page."""
    return (PAGES / f"llamacpp-{VERSION}-{name}").read_bytes()


def get(url: str) -> tuple[int, bytes]:
    """Return status and body of a page, whatever the status."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as answer:
        with answer:
            return answer.code, answer.read()


def listening_url(pid: int) -> str:
    """Return the URL of a process's listening socket, waiting for it a moment."""
    for _ in range(1000):
        opened = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        for row in rows:
            if row[3] == "0A" and f"socket:[{row[9]}]" in opened:
                return f"http://127.0.0.1:{int(row[1].partition(':')[2], 16)}"
        time.sleep(0.01)
    raise TimeoutError("the process does not listen")


@contextlib.contextmanager
def never_loaded() -> Iterator[Path]:
    """Give a model whose loading never ends: a pipe that nobody writes."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.gguf"
        os.mkfifo(model)
        yield model


@contextlib.contextmanager
def loading_server() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Give a server's process and URL while it loads its model."""
    module = [sys.executable, "-m", "fairlane.engines.embedded_server"]
    with never_loaded() as model:
        options = [f"--model={model}", "--name=m", "--slots=2", "--context=1024"]
        with subprocess.Popen([*module, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                yield process, listening_url(process.pid)
            finally:
                process.kill()


async def _record() -> None:
    model = weights.locate(None, sys.stdout)
    engine = await embedded.start(model, name="smollm2-135m", slots=2)
    for path, name in NAMES.items():
        _, body = await asyncio.to_thread(get, engine.url + path)
        where_it_was = re.escape(str(model.parent).encode())
        (PAGES / f"llamacpp-{VERSION}-{name}").write_bytes(re.sub(where_it_was, b"/models", body))
    with ThreadPoolExecutor() as threads:
        for _ in range(5):
            threads.submit(_ask, engine.url)
        busy = b""
        while b"requests_deferred 3" not in busy:
            _, busy = get(engine.url + "/metrics")
    (PAGES / f"llamacpp-{VERSION}-{BUSY}").write_bytes(busy)
    await engine.stop()


def _ask(url: str) -> None:
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 64, "ignore_eos": True}).encode()
    with urllib.request.urlopen(urllib.request.Request(url + "/v1/completions", body), timeout=60) as answer:
        answer.read()


def _record_vllm(url: str) -> None:
    version = json.loads(get(f"{url}/version")[1])["version"]
    for path in ("/metrics", "/v1/models"):
        (PAGES / f"vllm-{version}-{NAMES[path]}").write_bytes(get(url + path)[1])


if __name__ == "__main__" and len(sys.argv) > 1:
    _record_vllm(sys.argv[1])
elif __name__ == "__main__":
    asyncio.run(_record())
    with loading_server() as (_, url):
        (PAGES / f"llamacpp-{VERSION}-{LOADING}").write_bytes(get(url + "/health")[1])
