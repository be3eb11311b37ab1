"""A server of one test never meets a server of another that runs at the same time in another process."""

import subprocess
import sys
from pathlib import Path

from tests.ports import BLOCK, FIRST, LAST, own_port

ROOT = Path(__file__).parents[2]
ASK = "from tests.ports import own_port; print(own_port(), own_port())"


def block(port: int) -> int:
    """Return which block a port is from."""
    return (port - FIRST) // BLOCK


def test_two_processes_have_no_port_in_common() -> None:
    """Each has a block for itself, which holds every port that it is given."""
    ours = [own_port(), own_port()]
    said = subprocess.run([sys.executable, "-c", ASK], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30).stdout
    theirs = [int(port) for port in said.split()]
    assert len({*ours, *theirs}) == 4
    assert block(ours[0]) == block(ours[1]) != block(theirs[0]) == block(theirs[1])
    assert all(FIRST < port < LAST for port in (*ours, *theirs))
