"""The servers of the benchmark: vLLM with the tiny model, and the gateway in front of it."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from bench.machine import free_port
from bench.vllm_order.calls import MODEL

ROOT = Path(__file__).parents[2]
START_S = 400  # three processes import vLLM one after the other
SERVE = "--load-format dummy --enforce-eager --max-model-len 4096 --kv-cache-memory-bytes 268435456 --host 127.0.0.1"


class NotStartedError(Exception):
    """A server ended or did not answer in time; the text is the end of what it said."""


class GoneError(Exception):
    """A server has ended while it was measured."""


@dataclass(frozen=True)
class Engine:
    """A running vLLM."""

    port: int
    starts: Path  # one line for each request that joined the batch: see watched.py

    def counter(self, name: str) -> float:
        """A series of its metrics, summed over its labels."""
        return series(self.port, f"vllm:{name}")


@dataclass(frozen=True)
class Gateway:
    """A running gateway; its log is whole once it has ended."""

    port: int
    admin: int
    log: Path


def page(port: int, path: str) -> str:
    """A page of a server on loopback, or nothing while it does not serve it."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return str(answer.read(), "utf-8") or "ok"
    except (URLError, OSError):
        return ""


def series(port: int, name: str) -> float:
    """A series of a page of metrics, summed over its labels.

    Raises:
        GoneError: if there is no such page any more.
    """
    lines = page(port, "/metrics").splitlines()
    if not lines:
        raise GoneError(f"nothing serves metrics at port {port} any more")
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))


@contextmanager
def running(command: list[str], log: Path, ready: Callable[[], bool], environment: Mapping[str, str]) -> Iterator[None]:
    """A server, from when it is ready; it is ended on the way out."""
    with log.open("wb") as sink:
        process = subprocess.Popen(command, env={**os.environ, **environment}, cwd=ROOT, stdout=sink, stderr=sink, start_new_session=True)
    try:
        until = time.monotonic() + START_S
        while not ready():
            if process.poll() is not None or time.monotonic() > until:
                raise NotStartedError(f"{' '.join(command)}\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()


@contextmanager
def vllm(python: str, options: list[str], environment: Mapping[str, str]) -> Iterator[Engine]:
    """A vLLM with the tiny model, as `options` say."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, port = Path(scratch), free_port()
        env = {
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "FAIRLANE_BENCH_STARTS": str(folder / "starts"),
            **environment,
        }
        (folder / "starts").touch()
        subprocess.run([python, "scripts/tiny_model.py", str(folder / "model")], cwd=ROOT, env=os.environ | env, check=True, timeout=60)
        command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder / "model"), "--served-model-name", MODEL]
        command += [*SERVE.split(), "--port", str(port), *options]
        with running(command, folder / "log", lambda: page(port, "/health") != "", env):
            yield Engine(port, folder / "starts")


@contextmanager
def gateway(program: str, settings: dict[str, object], folder: Path) -> Iterator[Gateway]:
    """The gateway with these settings, which get its addresses; it has ended on the way out, with its log in `folder`."""
    port, admin = free_port(), free_port()
    addresses = {"listen": f"127.0.0.1:{port}", "admin_listen": f"127.0.0.1:{admin}"}
    (folder / "gateway.yaml").write_text(json.dumps({"server": addresses, **settings}))
    log = folder / "gateway.log"
    with running(
        [program, "serve", "--config", str(folder / "gateway.yaml")], log, lambda: page(admin, "/readyz") != "", {"PYTHONPATH": ""}
    ):
        yield Gateway(port, admin, log)
