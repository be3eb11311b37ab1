"""The arithmetic of costs, and the heap of what waits."""

from __future__ import annotations

from fairlane.core.flows import SLACK, Waiting
from fairlane.core.values import ENDED, RUNNING, WAITING, CostWeights, Engine, Tenant, Usage
from tests.core.world import make, request


def test_cost_weighs_tokens_and_spares_cached_ones() -> None:
    """Cost is the weighted sum of tokens; more cached tokens than prompt tokens are no credit."""
    assert CostWeights().cost(Usage(100, 50, 30)) == 70 + 200
    assert CostWeights(2, 4).cost(Usage(100, 0)) == 200
    assert CostWeights().cost(Usage(100, 1, 150)) == 4


def test_an_upper_bound_below_the_mean_is_raised_to_it() -> None:
    """What is reserved for a request is never less than what it is expected to need."""
    scheduler = make((Engine("e", 4),))
    for upper, expected in ((0, 25), (24, 25), (25, 25), (400, 400)):
        r = request(Tenant("t"), 0, output=25)
        r.upper_tokens = upper
        scheduler.submit(r, 0.0)
        assert r.upper_tokens == expected


def test_what_waits_no_more_is_forgotten() -> None:
    """The least key of those that wait is found, and the heap holds little besides them however many come and go."""
    waiting = Waiting()
    keep = request(Tenant("t"), 0)
    keep.state = WAITING
    waiting.add(5.0, keep, 1)
    for i in range(1000):
        passing = request(Tenant("t"), 0)
        passing.state = WAITING
        waiting.add(10.0 - i % 10, passing, 2)
        assert waiting.first() is (passing if i % 10 > 5 else keep)
        passing.state = (RUNNING, ENDED)[i % 2]
        assert waiting.first() is keep
        assert len(waiting._heap) <= 2 * 2 + SLACK
