"""The embedded engine as the gateway sees it: a child process that is started, may crash, and is stopped.

The child (`embedded_server`) has a session of its own, so Ctrl-C in a terminal reaches the gateway alone, which can then
let running requests end. It holds one end of a pipe as its standard input and dies when the gateway's end is gone.
"""

import asyncio
import contextlib
import importlib.util
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from fairlane.errors import EngineError

START_S_MAX = 300.0  # a large model from a slow disk takes minutes, longer than this nobody waits
LAST_WORDS_BYTES = 2000  # of what llama.cpp said, kept to explain its end
_MISSING = "the embedded engine needs the package xllamacpp; install it with: pip install 'fairlane[embedded]'"


class EmbeddedEngine:
    """A llama.cpp server that runs and listens at `url`. Made by `start`; whoever started it calls `stop`."""

    __slots__ = ("_last_words", "_listener", "_process", "pid", "url")

    def __init__(self, process: Process) -> None:
        self.url = ""
        self.pid = process.pid
        self._process = process
        self._last_words = b""
        self._listener = asyncio.create_task(self._listen())

    @property
    def exited(self) -> bool:
        """Tell whether the process has ended, by itself or by `stop`."""
        return self._process.returncode is not None

    async def wait_closed(self) -> str:
        """Return how the process ended, with its last words, once it has; any number of tasks may wait."""
        status = await self._process.wait()
        await asyncio.wait([self._listener])  # unlike awaiting it, this does not cancel it with the waiter
        how = f"was ended by signal {-status} ({signal.strsignal(-status)})" if status < 0 else f"ended with exit status {status}"
        words = self._last_words.decode(errors="replace").strip()
        return f"llama.cpp {how}" + (f"; its last words:\n{words}" if words else "")

    async def stop(self) -> None:
        """End the process and whatever it runs; a second call does nothing. It has nothing to save, so it is killed."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self.wait_closed()

    async def read_url(self) -> None:
        """Wait until the server listens and take down its URL; EngineError if it ends before."""
        assert self._process.stdout  # noqa: S101 - it was made with a pipe
        line = await self._process.stdout.readline()
        if not line:
            raise EngineError(f"the embedded engine did not start: {await self.wait_closed()}")
        self.url = json.loads(line)["url"]

    async def _listen(self) -> None:
        """Read the child's standard error for as long as it lives: a full pipe would stop it."""
        assert self._process.stderr  # noqa: S101 - it was made with a pipe
        while said := await self._process.stderr.read(65536):
            self._last_words = (self._last_words + said)[-LAST_WORDS_BYTES:]


async def start(model: Path, *, name: str, slots: int, context: int = 4096) -> EmbeddedEngine:
    """Return an engine that serves `model` under `name` with `slots` places of `context` tokens, once it can answer.

    EngineError says why it could not. No process is left behind then, nor when the caller is cancelled.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise EngineError(_MISSING)
    options = [f"--model={model}", f"--name={name}", f"--slots={slots}", f"--context={context}"]
    command = [sys.executable, "-P", "-m", "fairlane.engines.embedded_server", *options]  # -P: no modules of the working folder
    spawning = asyncio.create_task(_spawn(command))
    try:
        async with asyncio.timeout(START_S_MAX):
            engine = await asyncio.shield(spawning)  # cancelled half-way, it would leave a process that nobody knows
            await engine.read_url()
    except BaseException as fault:
        await (await spawning).stop()
        if isinstance(fault, TimeoutError):
            raise EngineError(f"the embedded engine did not start within {START_S_MAX:.0f} s") from None
        raise
    return engine


async def _spawn(command: list[str]) -> EmbeddedEngine:
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True)
    except OSError as fault:
        raise EngineError(f"the embedded engine's process cannot be made: {fault.strerror}") from fault
    return EmbeddedEngine(process)
