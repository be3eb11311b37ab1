"""The swarm, as far as a run of all tests can wait for it: a fixed set of seeds. New ones are for `python -m tests.swarm`."""

from __future__ import annotations

import pytest

from tests.swarm.checks import Broken, Checks, held
from tests.swarm.run import Run, swarm

STEPS = 1000
KNOWN = [*range(40), 1375]  # the last one: a request that came back from an engine after a reload takes its old place


@pytest.mark.parametrize("seed", KNOWN)
def test_every_invariant_holds_after_every_step(seed: int) -> None:
    """A random gateway keeps all invariants under random events, and ends with everything at zero."""
    swarm(seed, STEPS)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_seed_decides_everything(seed: int) -> None:
    """Two runs of one seed decide the same in the same order."""
    assert swarm(seed, STEPS) == swarm(seed, STEPS)


def test_a_failure_is_the_command_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends at the step that failed, and names the event and the invariant."""
    monkeypatch.setattr(Checks, "after", lambda self, *_, **__: held(self.scheduler.queued < 3, "I0 three wait"))
    with pytest.raises(Broken) as broken:
        swarm(0, STEPS)
    command, _, what = str(broken.value).partition("  # ")
    steps = int(command.removeprefix("python -m tests.swarm --seed 0 --steps "))
    assert what.endswith(": I0 three wait")
    again = Run(0)
    for _ in range(steps - 1):
        again.step()
    with pytest.raises(Broken, match="three wait"):
        again.step()
