"""What was learned survives a restart, and a state that does not match changes nothing."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.core.values import Usage
from fairlane.errors import SettingsError
from fairlane.predict.estimate import Estimator, PromptSize
from fairlane.predict.state import dump, load, pieces

PROMPT = PromptSize.of("x" * 400)


def taught() -> Estimator:
    random_ = random.Random(4)
    estimator = Estimator()
    for place in range(600):
        tenant, previous = random_.choice("abc"), random_.choice([None, 50, 700])
        asked = estimator.estimate(tenant, "m", PROMPT, None, 1, rank=place % 3, template=place % 2, previous=previous, idle_s=5.0)
        usage = Usage(130, round(random_.lognormvariate(5, 1)) + 1)
        estimator.learn(tenant, "m", PROMPT, asked, usage, complete=True, now=1e6 + place)
    return estimator


def figures(estimator: Estimator) -> list[int]:
    """Estimates of all kinds, but the upper lengths: one answer more in the running sums can carry these over a gap."""
    found = []
    for tenant in ("a", "b", "new"):
        for previous in (None, 60, 800):
            estimate = estimator.estimate(tenant, "m", PROMPT, None, 1, rank=1, template=1, previous=previous, idle_s=7.0)
            assert estimate.prediction is not None
            found += [estimate.prompt_tokens, estimate.prediction.mean, estimate.prediction.order]
    return found


def times(estimator: Estimator) -> list[float]:
    levels = estimator.lengths.histograms.levels
    return [node.at for _, node in (*levels.nodes.items(), *levels.tenants.items())]


def test_a_state_brings_back_what_was_learned() -> None:
    """After a restart, with a clock that begins anew, predictions are what they would have been."""
    before = taught()
    after = Estimator()
    load(dump(before, 1e6 + 600), after, 5.0)
    assert figures(after) == pytest.approx(figures(before), rel=0.03, abs=1)
    assert times(after) == pytest.approx([at - 1e6 - 595 for at in times(before)], abs=0.01)


def test_a_state_is_the_same_after_a_round_trip() -> None:
    """What was restored is stored as it came."""
    first = dump(taught(), 1e6 + 600)
    again = Estimator()
    load(first, again, 100.0)
    assert dump(again, 100.0) == first


def test_learning_goes_on_after_a_restart() -> None:
    """A restored estimator learns as one that never stopped."""
    one, other = taught(), Estimator()
    load(dump(one, 1e6 + 600), other, 1e6 + 600)
    for estimator in (one, other):
        for place in range(200):
            asked = estimator.estimate("a", "m", PROMPT, None, 1, previous=50, idle_s=5.0)
            estimator.learn("a", "m", PROMPT, asked, Usage(130, 20 + place), complete=True, now=1e6 + 600 + place)
    assert figures(other) == pytest.approx(figures(one), rel=0.03, abs=1)


def test_a_state_may_be_made_while_learning_goes_on() -> None:
    """Between two pieces more is learned, and even forgotten; what comes of it is a whole state all the same."""
    estimator, taught_since = taught(), 0
    made = []
    for piece in pieces(estimator, 1e6 + 600):
        made.append(piece)
        for _ in range(3):
            taught_since += 1
            asked = estimator.estimate(f"t{taught_since}", "m", PROMPT, None, 1)
            estimator.learn(f"t{taught_since}", "m", PROMPT, asked, Usage(130, 50), complete=True, now=1e6 + 600 + taught_since)
    assert taught_since > 200
    after = Estimator()
    load("".join(made).encode(), after, 0.0)
    assert after.estimate("a", "m", PROMPT, None, 1).output_tokens > 1


def test_a_piece_is_made_when_its_turn_comes() -> None:
    """Not all at once when the first is asked for: that would hold everything up."""
    estimator = taught()
    before = list(pieces(estimator, 1e6 + 600))
    last = before.index('},"models":') - 2
    made = pieces(estimator, 1e6 + 600)
    for place, piece in enumerate(before[:last]):
        assert next(made) == piece, place
    for node in dict(estimator.lengths.histograms.levels.nodes.items()).values():
        node.learn(1, 2.0, 1e6 + 600)
    assert next(made) != before[last]


def test_templates_are_known_again_after_a_restart() -> None:
    """A template that had histograms of its own is heard from the first request on, and a new one is not."""
    after = Estimator()
    load(dump(taught(), 1e6 + 600), after, 5.0)
    heard = [after.estimate("a", "m", PROMPT, None, 1, template=template).asked for template in (1, 2)]
    assert [asked and asked.template for asked in heard] == [1, 0]


def spoilt(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Documents that are each wrong in one place."""
    node = document["lengths"]["nodes"][0]
    tenant = document["lengths"]["tenants"][0]

    def lengths(**changed: object) -> dict[str, Any]:
        return document | {"lengths": document["lengths"] | changed}

    return [
        document | {"format": "something"},
        document | {"version": 0},
        {name: part for name, part in document.items() if name != "lengths"},
        document | {"models": [["m", 99.0, 3]]},
        document | {"tenants": [["a", 1, 0.0, 3]]},
        document | {"models": [["m", 0.0, 3]] * 10_001},
        lengths(phase="x"),
        lengths(phase=float("nan")),
        lengths(shifts=[["m", 0, False, 99.0]]),
        lengths(shifts=[["m", 0, False]]),
        lengths(nodes=[["key", *node[1:]]]),
        lengths(nodes=[[[], *node[1:]]]),
        lengths(nodes=[[[None], *node[1:]]]),
        lengths(nodes=[[node[0], -1.0, *node[2:]]]),
        lengths(nodes=[[*node[:2], 0, node[3]]]),
        lengths(nodes=[[*node[:3], []]]),
        lengths(nodes=[[*node[:3], [[64, 1.0, 1.0]]]]),
        lengths(nodes=[[*node[:3], [[0, -1.0, 1.0]]]]),
        lengths(nodes=[node[:3]]),
        lengths(nodes=[node] * 10_001),
        lengths(tenants=[[*tenant[:4], []]]),
        lengths(tenants=[[*tenant[:4], [99.0] * len(tenant[4])]]),
        lengths(tenants=[tenant[:4]]),
    ]


@pytest.mark.parametrize("place", range(23))
def test_a_state_that_does_not_match_is_refused(place: int) -> None:
    """The estimator is left as it was, and the error says what is wrong."""
    estimator = taught()
    before = dump(estimator, 1e6 + 600)
    wrong = json.dumps(spoilt(json.loads(before))[place]).encode()
    with pytest.raises(SettingsError, match=r"does not match: .+"):
        load(wrong, estimator, 0.0)
    assert dump(estimator, 1e6 + 600) == before


@given(st.binary() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode))
def test_bytes_of_any_kind_are_refused(data: bytes) -> None:
    """Nothing but a state is taken for one."""
    with pytest.raises(SettingsError):
        load(data, Estimator(), 0.0)
