"""The file of what was learned is whole whenever one looks, and making it holds nothing up."""

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlane.core.values import Usage
from fairlane.gateway import knowledge as module
from fairlane.gateway.knowledge import TURNS_MAX, Knowledge, Turn, Turns, _replace
from fairlane.predict.estimate import Estimator, PromptSize
from fairlane.predict.state import load
from fairlane.settings import PredictorSettings
from fairlane.telemetry.log import Log
from tests.meters import until

OLD = b"the old state"
WRITER = """
import sys
from pathlib import Path
from fairlane.gateway.knowledge import _replace
number = 0
while True:
    number += 1
    _replace(Path(sys.argv[1]), ['{"number":', str(number), ',"filling":"', *["x" * 1000] * 2000, '"}'])
"""


def teach(estimator: Estimator, tenants: int) -> None:
    random_ = random.Random(1)
    prompt = PromptSize(400)
    for place in range(6 * tenants):
        tenant = f"t{place % tenants}"
        estimate = estimator.estimate(tenant, "m", prompt, None, 1)
        estimator.learn(tenant, "m", prompt, estimate, Usage(100, random_.randint(1, 2000)), complete=True, now=place)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with (tmp_path / "log").open("wb") as sink:
        yield Log(sink, "info")


@pytest.mark.parametrize("name", ["os.fsync", "pathlib.Path.replace"])
def test_a_failed_saving_leaves_the_old_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    """Whether the disk or the renaming fails: the old file is whole, and nothing lies beside it."""

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "state"
    path.write_bytes(OLD)
    monkeypatch.setattr(name, fail)
    with pytest.raises(OSError, match="No space left"):
        _replace(path, ["new"])
    monkeypatch.undo()
    assert path.read_bytes() == OLD
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_killed_at_any_moment_leaves_a_whole_file(tmp_path: Path) -> None:
    """SIGKILL while two megabytes are written again and again: what is there can be read, each time."""
    path = tmp_path / "state"
    for attempt in range(10):
        path.unlink(missing_ok=True)
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
        until(path.exists, "the first file is there", 20)
        time.sleep(attempt * 0.003)
        writer.kill()
        writer.wait()
        assert len(json.loads(path.read_bytes())["filling"]) == 2_000_000


def test_a_link_to_the_file_stays_a_link(tmp_path: Path, log: Log) -> None:
    """What it leads to is replaced, so a file on another disk is saved there."""
    real, link = tmp_path / "real", tmp_path / "link"
    link.symlink_to(real)

    async def run() -> None:
        knowledge = Knowledge(PredictorSettings(state_file=str(link)), log)
        teach(knowledge.estimator, 3)
        knowledge.start()
        await asyncio.sleep(0)
        await knowledge.stop()

    asyncio.run(run())
    assert link.is_symlink()
    load(real.read_bytes(), Estimator(), 0.0)


def test_it_is_saved_every_few_minutes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log: Log) -> None:
    """Also without a stop, again and again."""
    path = tmp_path / "state"
    monkeypatch.setattr(module, "SAVE_S", 0.02)

    async def run() -> None:
        knowledge = Knowledge(PredictorSettings(state_file=str(path)), log)
        knowledge.start()
        for tenants in (1, 2):
            teach(knowledge.estimator, tenants)
            await asyncio.to_thread(until, path.exists, "it is saved", 10)
            path.unlink()
        await knowledge.stop()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_making_the_text_holds_nothing_up(tmp_path: Path, log: Log) -> None:
    """With thousands of histograms the loop goes round many times meanwhile, and what is learned in between does no harm."""
    path = tmp_path / "state"
    rounds = 0

    async def run() -> None:
        nonlocal rounds
        knowledge = Knowledge(PredictorSettings(state_file=str(path)), log)
        teach(knowledge.estimator, 500)
        knowledge.start()
        await asyncio.sleep(0)
        stopping = asyncio.ensure_future(knowledge.stop())
        while not stopping.done():
            rounds += 1
            teach(knowledge.estimator, 1)
            await asyncio.sleep(0)

    asyncio.run(run())
    assert rounds > 10
    after = Estimator()
    load(path.read_bytes(), after, 0.0)
    assert len(after.tenants) == 500


def test_the_state_is_its_owners_alone(tmp_path: Path) -> None:
    """Names of tenants and their habits are nobody else's business."""
    _replace(tmp_path / "state", ["x"])
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0


def test_turns_are_found_by_who_asked() -> None:
    """A conversation is known to its tenant only, its last answer counts, and there is a bound on all of them."""
    turns = Turns()
    turns.note("a", 5, 100, 1.0)
    turns.note("a", 5, 200, 2.0)
    assert turns.find("a", 5) == Turn(200, 2.0)
    assert turns.find("b", 5) is None
    turns.note("a", 0, 300, 3.0)
    assert turns.find("a", 0) is None
    for turn in range(6, 3 * TURNS_MAX):
        turns.note("b", turn, 1, 4.0)
    assert len(turns._kept) <= TURNS_MAX
    assert turns.find("a", 5) is None
