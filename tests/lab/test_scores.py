"""The figures of predictions, against their definitions."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.lab.replay import Foretold
from fairlane.lab.scores import auc, scores, tau
from fairlane.predict.asked import Prediction

small = st.integers(0, 6)


@given(st.lists(st.tuples(small, small), max_size=25))
def test_tau_is_kendalls(pairs: list[tuple[int, int]]) -> None:
    """Concordant less discordant pairs over the root of the untied ones of both sides."""
    signs = [((a[0] > b[0]) - (a[0] < b[0]), (a[1] > b[1]) - (a[1] < b[1])) for a, b in combinations(pairs, 2)]
    untied = sum(x != 0 for x, _ in signs) * sum(y != 0 for _, y in signs)
    found = tau([x for x, _ in pairs], [y for _, y in pairs])
    assert found == (pytest.approx(sum(x * y for x, y in signs) / untied**0.5) if untied else None)


@given(st.lists(st.tuples(small, st.booleans()), max_size=25))
def test_auc_is_the_share_of_pairs_in_order(ranked: list[tuple[int, bool]]) -> None:
    """Pairs of a positive and a negative, ties counting half."""
    pairs = [(a, b) for a, is_positive in ranked if is_positive for b, other in ranked if not other]
    found = auc([chance for chance, _ in ranked], [is_positive for _, is_positive in ranked])
    assert found == (pytest.approx(sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs)) if pairs else None)


def test_scores_of_three_answers() -> None:
    """Each figure as computed by hand."""
    foretold = [
        Foretold(100, Prediction(90, 120, 95, 120.0), 0.9, 80),
        Foretold(300, Prediction(300, 250, 320, 250.0), 0.4, 310),
        Foretold(200, Prediction(110, 400, 130, 400.0), 0.6, 250),
    ]
    assert scores(foretold) == pytest.approx(
        {
            "rows": 3,
            "auc": 1.0,
            "tau": 1.0,
            "tau_order": 1.0,
            "mae": (20 + 10 + 50) / 3,
            "pinball": (0.1 * 20 + 0.9 * 50 + 0.1 * 200) / 3,
            "coverage": 2 / 3,
            "bias": 500 / 600,
        }
    )


def test_nothing_to_tell_apart_has_no_rank() -> None:
    """Answers of one length have neither an AUC nor a tau."""
    figures = scores([Foretold(7, Prediction(7, 7, 7, 7.0), 1.0, 7)] * 2)
    assert (figures["auc"], figures["tau"], figures["coverage"]) == (None, None, 1.0)
