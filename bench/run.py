"""The cost of a request and of a streamed chunk: CPU time of the whole process tree, beside nginx and no gateway at all.

Each peer runs on one core, load and mock engine on another; "direct" is the mock engine alone in the peer's place, the floor.
Requests: one token, 32 connections, closed loop. Chunks: 64 streams of a token each 20 ms. Rounds take the peers in turn, each
freshly started, so a slow minute of the machine hits all of them. None writes an access log. CPU time moves far less with what
else runs than requests/s do: read it first.
"""

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

from bench import load
from bench.machine import CORES, FAIRLANE, cpu_s, describe, free_port, said

NGINX = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin") or "nginx"
NGINX_CONF = """daemon off; worker_processes 1; pid pid; error_log stderr error; events {{ worker_connections 4096; }}
http {{
  access_log off; tcp_nodelay on; keepalive_requests 1000000000;
  client_body_temp_path a; proxy_temp_path b; fastcgi_temp_path c; uwsgi_temp_path d; scgi_temp_path e;
  upstream engine {{ server 127.0.0.1:{engine}; keepalive 256; keepalive_requests 1000000000; }}
  server {{ listen 127.0.0.1:{port} backlog=1024; location / {{
    proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }} }}
}}
"""
FAIRLANE_YAML = """server: {{listen: "127.0.0.1:{port}", admin_listen: "127.0.0.1:{admin}", access_log: false}}
pools:
  - {{name: main, models: [mock], slots: 256, engines: [{{name: mock, kind: openai, url: "http://127.0.0.1:{engine}"}}]}}
classes:
  - {{name: all, max_wait_s: 60, max_queued: 1000}}
anonymous: {{class: all}}
"""
COLUMNS = {"request_us": "CPU us/request", "chunk_us": "CPU us/chunk", "thousands_per_s": "1000 requests/s", "p99_ms": "p99 ms"}


class NotMeasuredError(Exception):
    """A peer is not here or does not answer; the text says why."""


def direct(port: int, _engine: int, _folder: Path) -> list[str]:
    """The mock engine in the peer's place."""
    return [sys.executable, "-m", "bench.engine", str(port)]


def nginx(port: int, engine: int, folder: Path) -> list[str]:
    """One worker, connections to the engine kept, no buffering of answers."""
    (folder / "conf").write_text(NGINX_CONF.format(port=port, engine=engine))
    return [NGINX, "-e", "stderr", "-p", str(folder), "-c", str(folder / "conf")]


def fairlane(port: int, engine: int, folder: Path) -> list[str]:
    """The gateway with one class and more slots than the load ever fills, so that nothing waits."""
    (folder / "conf").write_text(FAIRLANE_YAML.format(port=port, engine=engine, admin=free_port()))
    return [FAIRLANE, "serve", "--config", str(folder / "conf")]


PEERS: dict[str, Callable[[int, int, Path], list[str]]] = {"direct": direct, "nginx": nginx, "fairlane": fairlane}


def answers(port: int) -> bool:
    """Whether a chat request gets its right answer."""
    try:
        return len(uvloop.run(load.run(port, 1, 1, 0)).right_s) == 1
    except OSError:
        return False


@contextmanager
def running(command: list[str], port: int, core: int, log: Path) -> Iterator[int]:
    """The process id of a server that runs on this core and answers; it is ended on the way out."""
    pinned = ["taskset", "-c", str(core), *command]
    with log.open("w") as sink:
        process = subprocess.Popen(pinned, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True)
    try:
        until = time.monotonic() + 20
        while not answers(port):
            if process.poll() is not None or time.monotonic() > until:
                raise NotMeasuredError(f"no answer, exit status {process.poll()}: {' '.join(log.read_text().split()[-40:])}")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(10)
        finally:
            process.kill()


def one_round(name: str, seconds: float, tokens: int) -> dict[str, float]:
    """Starts the mock engine and the peer afresh and measures both loads."""
    port, engine = free_port(), free_port()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with (
            running(direct(engine, 0, folder), engine, CORES[0], folder / "engine.log"),
            running(PEERS[name](port, engine, folder), port, CORES[-1], folder / "peer.log") as pid,
        ):
            uvloop.run(load.run(port, 32, 1, min(0.5, seconds)))  # warm
            before = cpu_s(pid)
            plain = uvloop.run(load.run(port, 32, 1, seconds))
            between = cpu_s(pid)
            streamed = uvloop.run(load.run(port, 64, tokens, 0))
            after = cpu_s(pid)
    requests, chunks = len(plain.right_s), len(streamed.right_s) * (tokens + 2)
    return {
        "request_us": 1e6 * (between - before) / max(requests, 1),
        "chunk_us": 1e6 * (after - between) / max(chunks, 1),
        "thousands_per_s": requests / seconds / 1000,
        "p99_ms": 1e3 * sorted(plain.right_s)[requests * 99 // 100] if requests else 0,
        "wrong": plain.wrong + streamed.wrong,
    }


def table(results: dict[str, list[dict[str, float]]]) -> str:
    """A row for each peer: medians, ranges in brackets."""
    lines = [f"{'':10}" + "".join(f"{title:26}" for title in COLUMNS.values()) + "wrong"]
    for name, rounds in results.items():
        columns = [[r[key] for r in rounds] for key in COLUMNS]
        cells = [f"{f'{statistics.median(c):.1f} ({min(c):.1f}-{max(c):.1f})':26}" for c in columns]
        lines.append(f"{name:10}{''.join(cells)}{sum(r['wrong'] for r in rounds):.0f}")
    return "\n".join(lines)


def main() -> int:
    """Status 1 says that a peer gave a wrong answer or that Fairlane was asked for and could not be measured."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3, help="length of the part without streams")
    parser.add_argument("--tokens", type=int, default=200, help="length of each stream")
    parser.add_argument("--only", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--json", action="store_true", help="all rounds, for another program")
    options = parser.parse_args()
    about = describe() | {"nginx": said(NGINX, "-v"), "command": shlex.join([sys.executable, "-m", "bench.run", *sys.argv[1:]])}
    os.sched_setaffinity(0, {CORES[0]})
    results: dict[str, list[dict[str, float]]] = {}
    missing: dict[str, str] = {}
    for name in options.only * options.rounds:
        try:
            if name not in missing:
                results[name] = [*results.get(name, []), one_round(name, options.seconds, options.tokens)]
        except (NotMeasuredError, OSError) as problem:
            missing[name] = str(problem)
    if options.json:
        print(json.dumps({"about": about, "rounds": options.rounds, "peers": results, "missing": missing}))
    else:
        print(*(f"{key}: {value}" for key, value in about.items()), f"rounds: {options.rounds}", "", table(results), sep="\n")
        print(*(f"{name}: not measured, {why}" for name, why in missing.items()), sep="\n")
    return int("fairlane" in missing or any(r["wrong"] for rounds in results.values() for r in rounds))


if __name__ == "__main__":
    sys.exit(main())
