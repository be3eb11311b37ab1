"""The real llama.cpp as a child process: what it answers, and that nothing of it outlives its parent."""

import asyncio
import io
import json
import os
import select
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from fairlane.engines import embedded, weights
from fairlane.engines.embedded import EmbeddedEngine
from fairlane.errors import EngineError
from fairlane.plugins import engine_adapter
from tests.engines.record import NAMES, get, loading_server, never_loaded, page

ROOT = Path(__file__).parents[2]
ASKED = {"model": "smollm2-135m", "messages": [{"role": "user", "content": "Say hello."}], "temperature": 0, "max_tokens": 6}
LOOPS = pytest.mark.parametrize("run", [uvloop.run, asyncio.run], ids=["uvloop", "asyncio"])
Run = Callable[[Coroutine[Any, Any, None]], None]

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def model() -> Path:
    """Name the demonstration model."""
    return weights.locate(None, io.StringIO())


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[EmbeddedEngine]:
    """Give an engine that runs, for the tests that only ask it something."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        started = runner.run(embedded.start(model, name="smollm2-135m", slots=2))
        yield started
        runner.run(started.stop())


def post(engine: EmbeddedEngine, body: dict[str, Any], **headers: str) -> tuple[dict[str, str], bytes]:
    """Send a chat and return headers and body of the answer."""
    request = urllib.request.Request(engine.url + "/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return dict(answer.headers), answer.read()


def is_gone(pid: int, within_s: float = 10) -> bool:
    """Tell whether a process has ended, waiting for it; one that nobody has waited for yet counts as ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ended = select.select([descriptor], [], [], within_s)[0]
    os.close(descriptor)
    return bool(ended)


def serving(model: Path) -> list[str]:
    """List the processes that serve this model or are about to."""
    named = str(model).encode()
    return [folder.name for folder in Path("/proc").glob("[0-9]*") if named in command_line(folder)]


def command_line(folder: Path) -> bytes:
    """Return the command line of a process, or nothing if it has just ended."""
    try:
        return (folder / "cmdline").read_bytes()
    except OSError:
        return b""


def test_it_answers_a_chat(engine: EmbeddedEngine) -> None:
    """A chat at temperature 0 is answered twice alike, with the usage counted."""
    answers = [json.loads(post(engine, ASKED)[1]) for _ in range(2)]
    texts = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert texts[0]
    assert texts[0] == texts[1]
    assert answers[0]["model"] == "smollm2-135m"
    assert 0 < answers[0]["usage"]["completion_tokens"] <= ASKED["max_tokens"]


def test_it_streams_a_chat(engine: EmbeddedEngine) -> None:
    """The streamed pieces of a chat make up the same answer as the whole one."""
    whole = json.loads(post(engine, ASKED)[1])["choices"][0]["message"]["content"]
    headers, body = post(engine, {**ASKED, "stream": True})
    events = [line.removeprefix("data: ") for line in body.decode().split("\n\n") if line]
    assert headers["Content-Type"] == "text/event-stream"
    assert events[-1] == "[DONE]"
    pieces = [json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events[:-1]]
    assert len([piece for piece in pieces if piece]) > 1
    assert "".join(pieces) == whole


def test_its_adapter_reports_what_was_asked_for(engine: EmbeddedEngine) -> None:
    """The probes find it healthy with its two slots, the context of one slot and its name."""
    adapter = engine_adapter("embedded")
    report = adapter.read([get(engine.url + path) for path in adapter.probes])
    assert (report.healthy, report.slots, report.context, report.models) == (True, 2, 4096, ("smollm2-135m",))
    assert report.problem is None


@pytest.mark.parametrize("path", NAMES)
def test_the_recorded_pages_are_its_own(engine: EmbeddedEngine, path: str) -> None:
    """The pages of the adapters' tests have the members and metrics that this version sends."""
    status, body = get(engine.url + path)
    recorded = page(NAMES[path])
    assert status == 200
    if path == "/metrics":
        assert [line.split()[0] for line in body.splitlines()] == [line.split()[0] for line in recorded.splitlines()]
    else:
        assert json.loads(body).keys() == json.loads(recorded).keys()


def test_pages_in_a_browser_may_not_read_from_it(engine: EmbeddedEngine) -> None:
    """No origin is allowed, though the server needs no key."""
    headers, _ = post(engine, ASKED, Origin="http://pages.example")
    assert headers.get("Access-Control-Allow-Origin", "") == ""


def test_it_has_a_session_of_its_own(engine: EmbeddedEngine) -> None:
    """Ctrl-C in the gateway's terminal does not reach it."""
    assert os.getsid(engine.pid) == engine.pid
    assert not engine.exited


@LOOPS
def test_stop_leaves_no_process(model: Path, run: Run) -> None:
    """After `stop` the process is gone and waited for; stopping again does nothing."""

    async def scenario() -> None:
        engine = await embedded.start(model, name="m", slots=1, context=256)
        waiting = [asyncio.create_task(engine.wait_closed()) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await engine.stop()
        await engine.stop()
        assert engine.exited
        assert await waiting[1] == "llama.cpp was ended by signal 9 (Killed)"
        assert is_gone(engine.pid, within_s=0)

    run(scenario())


@LOOPS
def test_a_crash_is_noticed(model: Path, run: Run) -> None:
    """A child that dies by itself ends `wait_closed`, which tells how."""

    async def scenario() -> None:
        engine = await embedded.start(model, name="m", slots=1, context=256)
        os.kill(engine.pid, signal.SIGSEGV)
        assert "signal 11 (Segmentation fault)" in await engine.wait_closed()
        assert engine.exited
        await engine.stop()

    run(scenario())


@LOOPS
def test_a_file_that_is_no_model(tmp_path: Path, run: Run) -> None:
    """The error has llama.cpp's own reason, which is shown nowhere else."""
    path = tmp_path / "text.gguf"
    path.write_text("no model")

    async def scenario() -> None:
        with pytest.raises(EngineError, match=r"(?s)did not start: .*exit status 1.*invalid magic characters"):
            await embedded.start(path, name="m", slots=1)

    run(scenario())


@LOOPS
def test_a_start_that_takes_too_long(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that does not load in time is given up, and its process with it."""
    monkeypatch.setattr(embedded, "START_S_MAX", 0.5)

    async def scenario() -> None:
        with never_loaded() as path, pytest.raises(EngineError, match="did not start within"):
            await embedded.start(path, name="m", slots=1)
        assert serving(path) == []

    run(scenario())


@LOOPS
def test_a_start_that_is_cancelled(run: Run) -> None:
    """Cancelling the start leaves no process, at whichever turn of the loop it comes and while the model loads."""

    async def scenario() -> None:
        with never_loaded() as path:
            for sleeps in [*([0.0] * turns for turns in range(6)), [0.5]]:
                starting = asyncio.create_task(embedded.start(path, name="m", slots=1))
                for seconds in sleeps:
                    await asyncio.sleep(seconds)
                starting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await starting
                assert serving(path) == []

    run(scenario())


@LOOPS
def test_a_process_that_cannot_be_made(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's reason is in the error."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    async def scenario() -> None:
        with pytest.raises(EngineError, match="process cannot be made: No such file or directory"):
            await embedded.start(Path("m"), name="m", slots=1)

    run(scenario())


@LOOPS
def test_it_dies_with_its_parent(model: Path, run: Run) -> None:
    """When the gateway's process is killed with SIGKILL, the engine ends."""
    code = f"""
import asyncio, uvloop
from pathlib import Path
from fairlane.engines import embedded
async def main():
    engine = await embedded.start(Path({str(model)!r}), name="m", slots=1, context=256)
    print(engine.pid, flush=True)
    await asyncio.sleep(60)
{run.__module__}.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        parent.kill()
    assert is_gone(pid)


def test_it_dies_with_its_parent_while_it_loads() -> None:
    """The end of its input ends the server in the midst of loading a model, too."""
    with loading_server() as (process, url):
        assert get(url + "/health")[0] == 503
        assert process.stdin
        process.stdin.close()
        assert process.wait(10) == -signal.SIGTERM
        assert process.stdout
        assert process.stdout.read() == b""


def test_sigterm_ends_it_while_it_loads() -> None:
    """SIGTERM works at any time."""
    with loading_server() as (process, _):
        process.terminate()
        assert process.wait(10) == -signal.SIGTERM


def test_input_that_ended_before_it_began() -> None:
    """A server whose parent was gone before it could look ends at once."""
    command = [sys.executable, "-m", "fairlane.engines.embedded_server", "--model=m", "--name=m", "--slots=1", "--context=1"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_without_the_package_the_error_tells_how_to_install_it() -> None:
    """An installation without the extra says what is missing."""
    code = """
import asyncio, pathlib
from fairlane.engines import embedded
try:
    asyncio.run(embedded.start(pathlib.Path("m"), name="m", slots=1))
except embedded.EngineError as fault:
    print(fault)
"""
    bare = [sys.executable, "-S", "-c", code]  # -S: without the installed packages
    said = subprocess.run(bare, cwd=ROOT / "src", capture_output=True, text=True, timeout=30, check=False)
    assert "pip install 'fairlane[embedded]'" in said.stdout
