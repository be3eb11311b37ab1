"""How good predictions of length are, in the figures that are used for it."""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from fairlane.lab.replay import SHORT_TOKENS, Foretold
from fairlane.predict.predictor import UPPER_SHARE


def scores(foretold: Sequence[Foretold]) -> dict[str, float | None]:
    """The figures over all predictions; None where there is nothing to tell apart.

    `auc`: how likely a short answer (at most 256 tokens) was given a higher chance of being short than a longer one. `tau`:
    Kendall's tau-b of predicted medians and lengths; `tau_order`: the same of the figure that requests are ordered by. `mae`:
    the mean distance of medians from lengths, in tokens. `pinball`: the loss of the upper lengths at 0.9. `coverage`: the share
    of answers within their upper length. `bias`: predicted means over lengths, summed.
    """
    tokens = [one.tokens for one in foretold]
    uppers = [one.prediction.upper for one in foretold]
    halves = [one.half for one in foretold]
    rows = len(foretold)
    return {
        "rows": rows,
        "auc": auc([one.short for one in foretold], [length <= SHORT_TOKENS for length in tokens]),
        "tau": tau(halves, tokens),
        "tau_order": tau([one.prediction.order for one in foretold], tokens),
        "mae": sum(abs(half - length) for half, length in zip(halves, tokens, strict=True)) / rows,
        "pinball": sum(map(_pinball, uppers, tokens)) / rows,
        "coverage": sum(length <= upper for length, upper in zip(tokens, uppers, strict=True)) / rows,
        "bias": sum(one.prediction.mean for one in foretold) / sum(tokens),
    }


def auc(chances: Sequence[float], are: Sequence[bool]) -> float | None:
    """The chance that a random positive is ranked above a random negative, ties counting half."""
    positives, negatives = Counter[float](), Counter[float]()
    for chance, is_positive in zip(chances, are, strict=True):
        (positives if is_positive else negatives)[chance] += 1
    pairs = positives.total() * negatives.total()
    if not pairs:
        return None
    below = won = 0.0
    for chance in sorted(positives.keys() | negatives.keys()):
        won += positives[chance] * (below + negatives[chance] / 2)
        below += negatives[chance]
    return won / pairs


def tau(predicted: Sequence[float], real: Sequence[float]) -> float | None:
    """Kendall's tau-b by Knight's method: sort by the one, count the exchanges that sort by the other."""
    pairs = len(real) * (len(real) - 1) // 2
    rows = sorted(zip(predicted, real, strict=True))
    same_predicted, same_real, same_both = _ties(predicted), _ties(real), _ties(rows)
    untied = math.sqrt((pairs - same_predicted) * (pairs - same_real))
    if not untied:
        return None
    swapped = _inversions([length for _, length in rows])
    return (pairs - same_predicted - same_real + same_both - 2 * swapped) / untied


def _ties(values: Sequence[object]) -> int:
    return sum(count * (count - 1) // 2 for count in Counter(values).values())


def _inversions(values: Sequence[float]) -> int:
    """Pairs that stand in falling order, counted with a tree of the values seen so far (Fenwick)."""
    levels = sorted(set(values))
    seen = [0] * (len(levels) + 1)
    swapped = 0
    for before, value in enumerate(values):
        rank = place = bisect_left(levels, value) + 1
        not_larger = 0
        while rank:
            not_larger += seen[rank]
            rank &= rank - 1
        swapped += before - not_larger
        while place < len(seen):
            seen[place] += 1
            place += place & -place
    return swapped


def _pinball(upper: int, tokens: int) -> float:
    return UPPER_SHARE * (tokens - upper) if tokens > upper else (1.0 - UPPER_SHARE) * (upper - tokens)
