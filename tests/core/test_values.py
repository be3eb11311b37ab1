"""The arithmetic of costs."""

from fairlane.core.values import CostWeights, Usage


def test_cost_weighs_tokens_and_spares_cached_ones() -> None:
    """Cost is the weighted sum of tokens; more cached tokens than prompt tokens are no credit."""
    assert CostWeights().cost(Usage(100, 50, 30)) == 70 + 200
    assert CostWeights(2, 4).cost(Usage(100, 0)) == 200
    assert CostWeights().cost(Usage(100, 1, 150)) == 4
