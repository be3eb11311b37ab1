"""Clients: when they come back, when they hang up."""

from __future__ import annotations

import random
from statistics import mean

import pytest

from fairlane.sim.load.clients import Clients, Retry


@pytest.mark.parametrize(
    ("retry", "hint", "expected"),
    [(Retry.NONE, 3.0, None), (Retry.FIXED, 3.0, 1.0), (Retry.OBEY, 3.0, 3.0), (Retry.OBEY, 120.5, None)],
)
def test_pauses_follow_the_rule(retry: Retry, hint: float, expected: float | None) -> None:
    """Each kind of client pauses as it says; one that obeys gives up at a hint that its library takes for never."""
    assert Clients(retry=retry).retry_in_s(1, hint, random.Random(1)) == expected


def test_full_jitter_doubles_its_reach() -> None:
    """The pause is anywhere up to a limit that doubles with each try until its own limit."""
    clients = Clients(retry=Retry.JITTER, tries_max=99)
    for tries, limit in ((1, 1.0), (3, 4.0), (9, 16.0)):
        pauses = [clients.retry_in_s(tries, None, random.Random(i)) or 0.0 for i in range(2000)]
        assert max(pauses) <= limit
        assert mean(pauses) == pytest.approx(limit / 2, rel=0.1)


@pytest.mark.parametrize("retry", [Retry.FIXED, Retry.JITTER, Retry.OBEY])
def test_tries_end(retry: Retry) -> None:
    """After its last try a client gives up."""
    assert Clients(retry=retry, tries_max=2).retry_in_s(2, 1.0, random.Random(1)) is None


def test_the_wanted_part_hangs_up_in_mid_answer() -> None:
    """As many clients leave as asked for, anywhere in the answer."""
    clients = Clients(disconnect_ratio=0.2)
    rng = random.Random(1)
    after = [clients.hangs_up_after(100, rng) for _ in range(5000)]
    assert sum(n > 0 for n in after) / len(after) == pytest.approx(0.2, rel=0.1)
    assert max(after) <= 100
    assert mean(n for n in after if n) == pytest.approx(50, rel=0.1)
