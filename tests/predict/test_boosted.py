"""The trained model: trees in plain Python, hints from texts, and when its guesses are heard."""

import json
import random

import pytest

from fairlane.errors import SettingsError
from fairlane.predict.asked import Asked
from fairlane.predict.predictor import Predictor
from fairlane.predict.trained import hints, model
from fairlane.predict.trained.boosted import COMPARED, COMPARED_MIN, FEATURES, Boosted
from fairlane.predict.trained.trees import Trees, TreesError

BY_TOOLS = [[[FEATURES.index("tools"), 0.5, 1, 2], [10.0], [4.0]]]  # guesses 2 ** 10 tokens without tools, 16 with
PLAIN = hints.of("hello")
WITH_TOOLS = hints.of("hello", tools=3)


def run(boosted: Boosted, seed: int, requests: int, lengths: tuple[int, int]) -> None:
    """Teach it requests of which some have tools; their answers have the first of the lengths, the others the second."""
    random_ = random.Random(seed)
    for _ in range(requests):
        has_tools = random_.random() < 0.5
        asked = Asked("tenant", "model", hints=WITH_TOOLS if has_tools else PLAIN)
        tokens = round(lengths[0 if has_tools else 1] * random_.uniform(0.8, 1.2))
        boosted.learn(asked, None, boosted.predict(asked), tokens, 0.0)


def test_trees_go_left_up_to_the_threshold_and_add_up() -> None:
    """The sum of two trees, one of them a single leaf."""
    trees = Trees([[[0, 1.5, 1, 2], [10.0], [1, 0.0, 3, 4], [20.0], [30.0]], [[0.25]]], 2)
    assert [trees.sum(x) for x in ((1.5, 9), (2, 0.0), (2, 0.1))] == [10.25, 20.25, 30.25]


@pytest.mark.parametrize(
    "document",
    [
        {}, [], [[]], [[1.0]], [[[float("inf")]]], [[["x"]]], [[[0, 1.0, 1, 2], [1.0]]], [[[2, 1.0, 1, 2], [1.0], [2.0]]],
        [[[0, 1.0, 0, 1], [1.0]]], [[[0.5, 1.0, 1, 2], [1.0], [2.0]]], [[[1.0, 2.0]]], [[[1.0]] * 128], [[[1.0]]] * 1001,
    ],
    ids=range(13),
)  # fmt: skip
def test_what_is_no_tree_is_refused(document: object) -> None:
    """Loops, missing children, unknown features, sizes beyond bounds and what is no number."""
    with pytest.raises(TreesError):
        Trees(document, 2)


def test_guesses_are_heard_while_they_help() -> None:
    """They are not at first, they are once they were the better ones, and no more when the traffic turned against them."""
    boosted = Boosted(Trees(BY_TOOLS, len(FEATURES)), Predictor())
    run(boosted, 1, COMPARED_MIN - 1, (16, 1024))
    assert not boosted.is_live("model")
    run(boosted, 2, COMPARED, (16, 1024))
    assert boosted.is_live("model")
    assert not boosted.is_live("other")
    tools, plain = (boosted.predict(Asked("tenant", "model", hints=shown)) for shown in (WITH_TOOLS, PLAIN))
    assert tools.upper < 60
    assert plain.mean > 700


def test_guesses_that_tell_nothing_are_not_worth_much() -> None:
    """Where answers do not depend on what the trees ask, both predictions come to the same."""
    boosted = Boosted(Trees(BY_TOOLS, len(FEATURES)), Predictor())
    run(boosted, 3, 2000, (200, 200))
    said = boosted.predict(Asked("tenant", "model", hints=PLAIN))
    assert said.rivals is not None
    assert said.rivals[0].mean == pytest.approx(said.rivals[1].mean, rel=0.05) == pytest.approx(200, rel=0.05)


def test_both_rivals_are_within_the_cap_and_one_of_them_is_given() -> None:
    """The choice is one of the two, whatever was learned."""
    boosted = Boosted(Trees(BY_TOOLS, len(FEATURES)), Predictor())
    run(boosted, 4, 500, (16, 1024))
    for cap in (None, 1, 30, 5000):
        said = boosted.predict(Asked("tenant", "model", hints=WITH_TOOLS), cap)
        assert said.rivals is not None
        assert said._replace(rivals=None) in said.rivals[:2]
        assert all(1 <= figure <= (cap or 1 << 60) for rival in said.rivals[:2] for figure in rival[:3])


def test_coverage_holds_with_guesses() -> None:
    """The calibrations of the two are kept apart, and the one that is given covers 90 % give or take 3 points."""
    boosted = Boosted(Trees(BY_TOOLS, len(FEATURES)), Predictor())
    random_ = random.Random(6)
    within = 0
    for _ in range(5000):
        has_tools = random_.random() < 0.5
        asked = Asked("tenant", "model", hints=WITH_TOOLS if has_tools else PLAIN)
        tokens = round(random_.lognormvariate(3 if has_tools else 6, 0.7)) + 1
        said = boosted.predict(asked)
        within += tokens <= said.upper
        boosted.learn(asked, None, said, tokens, 0.0)
    assert within / 5000 == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("Write a short poem", "prose", 1.0),
        ("Write a short poem", "brief", 1.0),
        ("Write a short poem", "code", 0.0),
        ("Write about 500 words.", "wanted", pytest.approx(9.35, abs=0.01)),
        ("Is it so?", "asks", 1.0),
        ("你好", "foreign", pytest.approx(2 / 3)),
        ("x" * 10_000 + " as JSON", "markup", 1.0),
        ("", "characters", 0.0),
        ("\ud800", "characters", 1.0),
    ],
)
def test_texts_give_hints(text: str, name: str, value: object) -> None:
    """Each hint stands at the place of its name; the end of a long text counts, and odd texts do no harm."""
    assert hints.of(text)[hints.NAMES.index(name)] == value
    assert len(hints.of(text)) == len(hints.NAMES)


def test_a_model_comes_back_from_its_file() -> None:
    """Trees and histograms are the same after a round trip."""
    boosted = Boosted(Trees(BY_TOOLS, len(FEATURES)), Predictor())
    run(boosted, 7, 300, (16, 1024))
    back = model.load(json.dumps(model.model_document(BY_TOOLS, boosted.histograms, 0.0)).encode(), 0.0)
    asked = Asked("tenant", "model", hints=WITH_TOOLS)
    one, other = boosted.predict(asked), back.predict(asked)
    assert one.rivals is not None
    assert other.rivals is not None
    assert other.rivals[1][:3] == pytest.approx(one.rivals[1][:3], rel=0.03)


@pytest.mark.parametrize(
    "changed",
    [{"format": "x"}, {"version": 2}, {"features": ["prompt"]}, {"trees": []}, {"trees": None}, {"lengths": {}}, {"lengths": []}],
    ids=str,
)
def test_a_model_that_does_not_match_is_refused(changed: dict[str, object]) -> None:
    """A file of another version or another kind stops the start with a reason."""
    document = model.model_document(BY_TOOLS, Predictor(), 0.0) | changed
    with pytest.raises(SettingsError, match=r"does not match: .+"):
        model.load(json.dumps(document).encode(), 0.0)
