"""What was learned of the length of answers, and the file that keeps it over restarts.

The file is only ever replaced as a whole: it is written beside itself, forced to the disk, and renamed. So it is good whenever the
process is killed. Putting the text together is spread over many rounds of the loop, writing it is a thread's.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import NamedTuple, TypeVar

from fairlane.errors import SettingsError
from fairlane.predict import state
from fairlane.predict.estimate import Estimator
from fairlane.predict.kept import Kept
from fairlane.predict.predictor import LengthModel
from fairlane.predict.trained import model
from fairlane.settings import PredictorSettings
from fairlane.telemetry.log import Log

LEARN_GAP_S = 0.01  # between two answers of a tenant and model that are learned, where many come
SAVE_S = 180.0  # between two savings: what a crash loses is little beside the hours that answers count
SLICE_S = 0.0005  # of putting the text together at once
PAUSE_S = 0.005  # between two slices, for all else
LEFTOVER_S = 3600.0  # age of a file that another process began and never finished
TURNS_MAX = 20_000  # conversations whose next turn may come: about 8 MB
SUFFIX = ".new"

_T = TypeVar("_T")


class Turn(NamedTuple):
    """An answer that a conversation may go on from: its length, and when it was there."""

    tokens: int
    at: float


class Turns:
    """The last answers by tenant and conversation. Memory is bounded, and nothing of it outlives the process."""

    def __init__(self) -> None:
        self._kept: Kept[tuple[str, int], list[Turn]] = Kept(TURNS_MAX)

    def find(self, tenant: str, turn: int) -> Turn | None:
        """The answer that ended this turn; 0 is none."""
        found = self._kept.find((tenant, turn)) if turn else None
        return found[-1] if found else None

    def note(self, tenant: str, turn: int, tokens: int, now: float) -> None:
        """Take note of an answer that ended a turn."""
        if turn:
            self._kept.use((tenant, turn), list)[:] = [Turn(tokens, now)]


class Knowledge:
    """An estimator that begins with what its files hold, and is saved while it learns. `SettingsError` where a file is wrong."""

    def __init__(self, settings: PredictorSettings, log: Log) -> None:
        lengths: LengthModel | None = None
        now = time.monotonic()
        if settings.model_file is not None:
            path = Path(settings.model_file)
            lengths = _understood(path, "train it anew or leave out predictor.model_file", lambda: model.load(_bytes(path), now))
        self.estimator = Estimator(lengths, gap_s=LEARN_GAP_S)
        self._log = log
        self._file: Path | None = None
        self._saving: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        if settings.state_file is not None:
            self._file = _resolved(Path(settings.state_file))
            self._load(self._file, now)

    def start(self) -> None:
        """Saves from now on, every few minutes."""
        if self._file is not None:
            self._saving = asyncio.get_running_loop().create_task(self._keep(self._file))

    async def stop(self) -> None:
        """Saves a last time."""
        self._stopping.set()
        if self._saving is not None:
            await self._saving

    def _load(self, path: Path, now: float) -> None:
        _try_folder(path)
        if path.exists():
            if not path.is_file():
                raise SettingsError([f"{path}: is not a file; see predictor.state_file"])
            cure = "move it away to start with nothing learned"
            _understood(path, cure, lambda: state.load(_bytes(path), self.estimator, now))
            self._log.info("state_loaded", file=str(path))

    async def _keep(self, path: Path) -> None:
        is_last = False
        while not is_last:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), SAVE_S)
            is_last = self._stopping.is_set()
            await self._save(path)

    async def _save(self, path: Path) -> None:
        """Whatever goes wrong is logged, and the file stays as it was."""
        try:
            parts = await self._parts()
            await asyncio.to_thread(_replace, path, parts)
        except Exception as error:  # noqa: BLE001 - requests are served all the same
            self._log.warning("state_not_saved", file=str(path), error=str(error) or type(error).__name__)

    async def _parts(self) -> list[str]:
        """The text of all that is known; others have their turn in between."""
        parts: list[str] = []
        slice_ends = time.monotonic() + SLICE_S
        for piece in state.pieces(self.estimator, time.monotonic()):
            parts.append(piece)
            if time.monotonic() > slice_ends:
                await asyncio.sleep(0.0 if self._stopping.is_set() else PAUSE_S)
                slice_ends = time.monotonic() + SLICE_S
        return parts


def _resolved(path: Path) -> Path:
    """The file itself where the path is a link to it: renaming would replace the link."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # the latter for links in a circle, up to Python 3.12
        raise SettingsError([f"{path}: cannot be read: {error}"]) from None


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError([f"cannot be read: {error.strerror}"]) from None


def _understood(path: Path, cure: str, read: Callable[[], _T]) -> _T:
    """What `read` makes of a file; its faults with the name of the file, and what to do."""
    try:
        return read()
    except SettingsError as error:
        raise SettingsError([f"{path}: {problem}; {cure}" for problem in error.problems]) from error


def _try_folder(path: Path) -> None:
    """Raises `SettingsError` if the file could not be written; takes away what others left unfinished long ago."""
    try:
        number, name = tempfile.mkstemp(SUFFIX, f"{path.name}.", path.parent)
        os.close(number)
        Path(name).unlink()
    except OSError as error:
        raise SettingsError([f"{path}: cannot be written: {error.strerror}; see predictor.state_file"]) from None
    with suppress(OSError):  # another start may be tidying up as well
        for leftover in path.parent.glob(f"{escape(path.name)}.*{SUFFIX}"):
            if time.time() - leftover.stat().st_mtime > LEFTOVER_S:
                leftover.unlink()


def _replace(path: Path, parts: list[str]) -> None:
    """Puts a text in the place of the file, at once or not at all."""
    number, name = tempfile.mkstemp(SUFFIX, f"{path.name}.", path.parent)
    try:
        with os.fdopen(number, "wb") as file:
            file.write("".join(parts).encode())
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # without it a crash of the machine could bring the old file back
    finally:
        os.close(folder)
