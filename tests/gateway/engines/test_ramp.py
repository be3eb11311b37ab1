"""How many of its slots an engine gets that was away."""

import asyncio

import pytest

from fairlane.gateway.engines.ramp import Ramp


def offers(slots: int, *times: tuple[int, bool]) -> list[int]:
    """What an engine is offered at each call, with so many slots and open or not, and then at each step until all is there."""

    async def run() -> list[int]:
        seen: list[int] = []
        stirred = asyncio.Event()
        ramp = Ramp(stirred.set, step_s=0.001)
        seen.extend(ramp.offered(slots, is_open=is_open) for slots, is_open in times)
        async with asyncio.timeout(5):
            while seen[-1] < slots:
                await stirred.wait()
                stirred.clear()
                seen.append(ramp.offered(slots, is_open=times[-1][1]))
        return seen

    return asyncio.run(run())


def test_at_its_first_start_an_engine_gets_all() -> None:
    """Nothing has waited for it."""
    assert offers(16, (0, False), (16, True)) == [0, 16]


@pytest.mark.parametrize(
    ("slots", "steps"),
    [(1, [1]), (2, [2]), (3, [2, 3]), (8, [2, 4, 8]), (16, [4, 8, 16]), (17, [5, 10, 17]), (256, [64, 128, 256])],
)
def test_after_it_was_away_it_gets_a_quarter_and_then_doubles(slots: int, steps: list[int]) -> None:
    """Two steps to all its slots, whatever their number; with one or two nothing changes."""
    assert offers(slots, (slots, True), (slots, False), (slots, True)) == [slots, slots, *steps]


def test_what_else_changes_does_not_begin_it_anew() -> None:
    """A call while it is open leaves it where it is, one with fewer slots lowers it, and a loss in the middle begins again."""
    assert offers(16, (16, True), (16, False), (16, True), (16, True), (3, True), (16, True)) == [16, 16, 4, 4, 3, 4, 8, 16]
    assert offers(16, (16, True), (16, False), (16, True), (16, False), (16, True)) == [16, 16, 4, 16, 4, 8, 16]
