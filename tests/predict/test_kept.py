"""The mapping that forgets what was not used for long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.predict.kept import Kept

keys = st.integers(0, 30)


@given(st.integers(2, 12), st.lists(keys))
def test_the_last_half_is_known_and_no_more_than_all_are_kept(most: int, used: list[int]) -> None:
    """Whatever is used, the latest keys, half as many as may be kept, still have the value that they were given first."""
    kept: Kept[int, list[int]] = Kept(most)
    for place, key in enumerate(used):
        value = kept.use(key, list)
        value.append(place)
        assert len(kept) <= most
        latest = list(dict.fromkeys(reversed(used[: place + 1])))[: most // 2]
        assert all(kept.find(one) is not None for one in latest)
        assert kept.find(key) is value


def test_asking_keeps_nothing() -> None:
    """Only use saves a value from being forgotten."""
    kept: Kept[str, list[int]] = Kept(4)
    for key in ("asked", "used", "a"):
        kept.use(key, list)
    kept.find("asked")
    kept.use("used", list)
    kept.use("b", list)
    assert kept.find("asked") is None
    assert kept.find("used") is not None


@given(st.integers(2, 12), st.lists(keys))
def test_entries_come_back_in_their_order(most: int, used: list[int]) -> None:
    """A copy of its entries is within the bound and forgets them in the same order."""
    kept: Kept[int, list[int]] = Kept(most)
    for key in used:
        kept.use(key, list)
    again = Kept(most, kept.items())
    assert list(again.items()) == list(kept.items())
    assert max(len(again.newer), len(again.older)) <= most // 2


@pytest.mark.parametrize("uses", [1, 2, 3])
def test_room_is_told_before_it_is_needed(uses: int) -> None:
    """Two of four may be used before anything ages."""
    assert Kept(4).has_room(uses) is (uses <= 2)
