"""A real gateway for tests: `fairlane serve` in a process of its own, with scripted upstreams behind it."""

import contextlib
import hashlib
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml

from tests.caller import CHAT, Answer, Call, request_bytes
from tests.meters import Meters, until
from tests.ports import own_port
from tests.stub import Stub

FAIRLANE = str(Path(sys.executable).with_name("fairlane"))
SCARS = ("Traceback", "never retrieved", "was never awaited", "Task was destroyed", "Unhandled")
Json = dict[str, object]


def engine(stub: Stub, slots: int, name: str = "e0", **more: object) -> Json:
    """Return the settings of a stub as an engine; it is probed often, so that tests see it come and go quickly."""
    return {"name": name, "kind": "openai", "url": stub.url, "slots": slots, "probe_s": 0.2, **more}


def priority_class(name: str = "only", **more: object) -> Json:
    """Return the settings of a class that bounds nothing a test does not bound itself."""
    return {"name": name, "max_wait_s": 60, "max_queued": 5000, **more}


def tenant(name: str, **more: object) -> Json:
    """Return the settings of a tenant of the class `only`, whose key is `key_of(name)`."""
    digest = hashlib.sha256(key_of(name).encode()).hexdigest()
    return {"name": name, "class": "only", "key_hashes": [f"sha256:{digest}"], **more}


def key_of(name: str) -> str:
    """Return the API key of a tenant."""
    return f"fl-{name}-0123456789abcdef0123456789abcdef"


def settings(
    engines: Sequence[Json],
    *,
    classes: Sequence[Json] | None = None,
    tenants: Sequence[Json] = (),
    anonymous: Json | None = None,
    **pool: object,
) -> Json:
    """Return the settings of a gateway with one pool that serves the model `m`; `pool` are more keys of it."""
    classes = classes or [priority_class()]
    return {
        "server": {"drain_s": 5},
        "pools": [{"name": "main", "models": ["m"], "engines": list(engines), **pool}],
        "classes": list(classes),
        "tenants": list(tenants),
        "anonymous": anonymous or {"class": classes[0]["name"]},
    }


class Gateway(Meters):
    """A running gateway. Leaving the `with` block stops it and checks that it went cleanly."""

    def __init__(self, configuration: Json, folder: Path, *, ready: bool = True) -> None:
        self._file = folder / "fairlane.yaml"
        self._errors = folder / "stderr.txt"
        self.port, admin_port = own_port(), own_port()
        super().__init__(admin_port)
        server = configuration["server"]
        assert isinstance(server, Mapping)
        addresses = {"listen": f"127.0.0.1:{self.port}", "admin_listen": f"127.0.0.1:{admin_port}"}
        self._file.write_text(yaml.safe_dump({**configuration, "server": {**server, **addresses}}, allow_unicode=True))
        self._wait_ready = ready
        self._calls: list[Call] = []
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen([FAIRLANE, "serve", "--config", str(self._file)], stdout=errors, stderr=errors)
        page = "/readyz" if self._wait_ready else "/healthz"
        try:
            until(lambda: self._answers(page), f"the gateway answers {page}", 20)
        except BaseException as error:
            self.process.kill()
            self.process.wait()
            error.add_note(self.stderr())
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.stop()
        else:
            self.process.kill()
            self.process.wait()
            error.add_note(f"the gateway wrote: {self.stderr()[-4000:]}")

    def _answers(self, page: str) -> bool:
        assert self.process.poll() is None, f"the gateway ended with {self.process.returncode}"
        with contextlib.suppress(OSError):
            return self.admin(page)[0] == HTTPStatus.OK
        return False

    def open(
        self,
        body: object,
        *,
        path: str = CHAT,
        key: str | None = None,
        headers: Sequence[tuple[str, str]] = (),
        method: str = "POST",
    ) -> Call:
        """Send a request and return at once."""
        self._calls.append(Call(self.port, request_bytes(body, path=path, key=key, headers=headers, method=method)))
        return self._calls[-1]

    def post(self, body: object, *, path: str = CHAT, key: str | None = None, headers: Sequence[tuple[str, str]] = ()) -> Answer:
        """Send a request and read its answer."""
        return self.open(body, path=path, key=key, headers=headers).finish()

    def hang_up(self) -> None:
        """Close what a test has left open, which only a failed one does; the gateway itself still has to be there."""
        for call in self._calls:
            call.close()
        assert self.process.poll() is None, f"the gateway was stopped, with code {self.process.returncode}: {self.stderr()[-4000:]}"

    def resident_bytes(self) -> int:
        """Return the memory of the process that is in use."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def stderr(self) -> str:
        """Return what the gateway has written."""
        return self._errors.read_text(errors="replace")

    def stop(self) -> None:
        """Stop it as an operator does, and check that it ends by itself and leaves no scar in its log."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        text = self.stderr()
        assert code == 0, f"exit code {code}: {text[-2000:]}"
        scars = [scar for scar in SCARS if scar in text]
        assert not scars, f"{scars} in the log: {text[-4000:]}"


Start = Callable[..., Gateway]
