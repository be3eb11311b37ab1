"""The figures, on records made by hand whose figures can be told by hand."""

from __future__ import annotations

import pytest

from fairlane.core.request import Request
from fairlane.core.values import Tenant
from fairlane.errors import Reason
from fairlane.predict.asked import Asked, Prediction
from fairlane.sim.attempts import Attempt, Backlog, End, Record
from fairlane.sim.engine.jobs import Job
from fairlane.sim.figures.arithmetic import fair_parts, jain, percentile
from fairlane.sim.figures.measures import Figures, Measure
from fairlane.sim.load.workload import Arrival, Phase
from fairlane.sim.setup import Setup

SETUP = Setup("gmp", warmup_s=0.0, duration_s=60.0)
COST = 100 + 4 * 50


def attempt(
    call: int, rank: int, at: float, *, tenant: str = "x", first: float | None = None, end: End = End.COMPLETED, **more: object
) -> Attempt:
    """A request of cost 300 that started at once, had its first token after `first` seconds, and ended ten seconds later."""
    arrival = Arrival(at, tenant, rank, 100, 50)
    job = Job(call, 100, 50)
    request = Request(call, Tenant(tenant), "main", rank, "m", 100, 50, 150, 100, 150, at)
    a = Attempt(call, 1, arrival, at, job, request, Asked(tenant, "m"), Prediction(50, 50, 50, 50.0))
    a.end = end
    if first is not None:
        a.started_at, a.first_token_at, a.prefilled = at, at + first, 100
        if end is not End.OPEN:
            a.ended_at, a.produced = at + first + 10.0, 50
    elif end is not End.OPEN:
        a.ended_at = at + 1.0
    for name, value in more.items():
        setattr(a, name, value)
    return a


def figures(*attempts: Attempt, setup: Setup = SETUP, backlogs: dict[int, Backlog] | None = None, oracle: Record | None = None) -> Figures:
    """The figures of a record of these attempts."""
    backlogs = backlogs or {}
    record = Record(list(attempts), [backlogs.get(rank, Backlog()) for rank in range(4)])
    return Measure(setup, record).figures(oracle)


def always() -> Backlog:
    """Something waits all the time."""
    backlog = Backlog()
    backlog.change(1, 0.0)
    return backlog


def test_goodput_counts_what_was_in_time_and_ended_in_time() -> None:
    """Late first tokens, unfinished and broken answers, and ends after the scored time give nothing; offline work has no SLO."""
    found = figures(
        attempt(1, 0, 5.0, first=1.5),
        attempt(2, 0, 5.0, first=1.6),
        attempt(3, 3, 5.0, first=30.0),
        attempt(4, 1, 55.0, first=1.0),
        attempt(5, 1, 5.0, first=1.0, end=End.DISCONNECTED),
        attempt(6, 1, 5.0, end=End.SHED),
    )
    assert found.goodput == pytest.approx(2 * COST / 60)


def test_attainment_counts_requests_and_not_tries() -> None:
    """Refusals and abandonment are misses, a later try that is in time makes up for them, and what is undecided is left out."""
    found = figures(
        attempt(1, 0, 1.0, first=1.0),
        attempt(2, 0, 2.0, end=End.SHED),
        attempt(3, 0, 3.0, end=End.SHED),
        attempt(3, 0, 6.0, first=1.0, tries=2),
        attempt(4, 0, 4.0, end=End.OPEN),
        attempt(5, 3, 5.0, end=End.OPEN),
        attempt(6, 3, 5.0, end=End.OPEN, first=3.0),
        attempt(7, 3, 5.0, first=3.0),
        attempt(8, 1, 59.0, end=End.OPEN),
        attempt(9, 2, 70.0, first=1.0),
    )
    assert found.attainment == [0.5, 0.0, None, 1.0]


def test_waste_is_work_without_a_useful_answer() -> None:
    """Late and broken answers are waste in full, and so is what a preemption made an engine do again."""
    found = figures(
        attempt(1, 0, 5.0, first=1.0),
        attempt(2, 0, 5.0, first=3.0),
        attempt(3, 3, 5.0, first=3.0, prefilled=400),
    )
    assert found.wasted_ratio == pytest.approx((300 + 300) / 1200)


def test_service_is_spread_over_the_time_it_takes() -> None:
    """A prompt counts until the first token and an answer after it, and only the part within the scored time."""
    setup = Setup("gmp", warmup_s=10.0, duration_s=30.0)
    found = figures(attempt(1, 0, 0.0, first=20.0), attempt(2, 3, 30.0, first=20.0, end=End.ABANDONED, produced=0), setup=setup)
    first, last = 50 + 200, 50
    assert found.share == pytest.approx([first / (first + last), 0.0, 0.0, last / (first + last)])


def test_shares_in_windows_count_only_while_something_waits() -> None:
    """The windowed share is of windows in which the class was backlogged throughout; a gap in the backlog leaves them out."""
    served = [attempt(i, i % 2, 5.0 * i, first=1.0) for i in range(10)]
    found = figures(*served, backlogs={0: always(), 1: Backlog(spans=[(0.0, 29.0), (31.0, 60.0)])})
    assert found.share_p5[0] == pytest.approx(0.5, abs=0.1)
    assert found.share_p5[1:] == [None, None, None]


def test_a_backlog_joins_spans_that_touch() -> None:
    """A moment at which one request starts and another comes does not end a backlog; time without any does."""
    backlog = Backlog()
    for change, at in ((1, 1.0), (-1, 2.0), (1, 2.0), (-1, 5.0), (1, 7.0)):
        backlog.change(change, at)
    assert backlog.spans == [(1.0, 5.0)]
    assert backlog.throughout(1.0, 5.0)
    assert backlog.throughout(8.0, 1e9)
    assert not backlog.throughout(4.0, 8.0)
    assert backlog.at_all(4.0, 8.0)
    assert not backlog.at_all(5.0, 7.0)


def test_jain_compares_with_what_each_was_entitled_to() -> None:
    """One who wanted little and got it does not spoil the index; one who got three times his rival's part does."""
    little = [attempt(1, 1, 0.0, tenant="little", first=5.0)]
    rivals = [attempt(10 + i, 1, 2.0 * i, tenant="a" if i % 4 else "b", first=2.0) for i in range(8)]
    waiting = [attempt(30 + i, 1, 0.0, tenant=t, end=End.OPEN) for i, t in enumerate("abab")]
    fair = figures(*little, backlogs={1: always()}).jain[1]
    unfair = figures(*little, *rivals, *waiting, backlogs={1: always()}).jain[1]
    assert fair == pytest.approx(1.0)
    assert unfair is not None
    assert 0.75 < unfair < 0.95


def test_times_to_the_first_token_are_percentiles() -> None:
    """Percentiles are of the tries that had a first token."""
    found = figures(*(attempt(i, 0, 1.0, first=i / 100) for i in range(1, 102)), attempt(200, 0, 1.0, end=End.SHED))
    assert found.ttft_s[0] == pytest.approx({"p50": 0.51, "p95": 0.96, "p99": 1.0})
    assert found.ttft_s[1] == {"p50": None, "p95": None, "p99": None}


def test_a_hint_is_compared_with_the_next_success() -> None:
    """The error is the distance from what was told to the first later arrival of that tenant and class that was in time."""
    found = figures(
        attempt(1, 0, 1.0, end=End.SHED, retry_after_s=3.0),
        attempt(2, 0, 4.0, tenant="other", first=0.5),
        attempt(3, 1, 5.0, first=0.5),
        attempt(4, 0, 9.0, first=0.5),
        attempt(5, 0, 20.0, end=End.SHED, retry_after_s=3.0),
    )
    assert found.retry_after_error_s == pytest.approx(abs(3.0 - (9.0 - 2.0)))


def test_recovery_is_the_time_until_all_is_as_before() -> None:
    """The first ten seconds in which requests attain nine tenths of what they did before the trouble end the recovery."""
    setup = Setup("gmp", warmup_s=0.0, duration_s=100.0, overload=Phase(30.0, 40.0, 5.0))
    calls = [attempt(i, 0, float(i), first=1.0) if i < 30 or i >= 55 else attempt(i, 0, float(i), end=End.SHED) for i in range(90)]
    assert figures(*calls, setup=setup).recovery_s == 14.0
    never = [attempt(i, 0, float(i), first=1.0) if i < 30 else attempt(i, 0, float(i), end=End.SHED) for i in range(90)]
    assert figures(*never, setup=setup).recovery_s == 50.0
    assert figures(*calls).recovery_s is None


def test_false_sheds_are_kept_requests_that_were_in_time() -> None:
    """Of what the oracle kept in the scored time, the part that was in time was shed falsely."""
    kept = [
        attempt(1, 0, 1.0, first=1.0, kept_at=1.5),
        attempt(2, 0, 1.0, first=2.0, kept_at=1.5),
        attempt(3, 1, 1.0, end=End.ABANDONED, kept_at=1.5),
        attempt(4, 1, 1.0, first=1.0, kept_at=61.0),
        attempt(5, 1, 1.0, first=1.0),
    ]
    oracle = Record(kept, [])
    assert figures(attempt(1, 0, 1.0, end=End.SHED, reason=Reason.QUEUE_FULL), oracle=oracle).false_shed_ratio == pytest.approx(1 / 3)
    assert figures(attempt(1, 0, 1.0, first=1.0)).false_shed_ratio is None


def test_fair_parts_fill_the_small_wishes_first() -> None:
    """Nobody gets more than wished; what the modest leave is shared evenly by the others; all is given away while wanted."""
    assert fair_parts(12.0, {"a": 1.0, "b": 5.0, "c": 100.0}) == {"a": 1.0, "b": 5.0, "c": 6.0}
    assert fair_parts(12.0, {"a": 9.0, "b": 9.0, "c": 9.0}) == {"a": 4.0, "b": 4.0, "c": 4.0}
    assert fair_parts(12.0, {"a": 2.0}) == {"a": 2.0}
    assert fair_parts(12.0, {}) == {}


def test_jain_is_one_for_equals_and_one_nth_for_one_taker() -> None:
    """The index of equal parts is 1, of one who has all 1/n, and there is none of nothing."""
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain([]) is None


def test_percentiles_lie_between_neighbours() -> None:
    """A percentile is linear between the two values next to it."""
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert percentile([1.0], 99) == 1.0
    assert percentile([], 50) is None
