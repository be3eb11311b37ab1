"""The figures of one run, each defined once, here. All count the scored time only.

Service is in cost units (1 a prompt token, 4 an output token). A request's prompt is served evenly between its start at the
engine and its first token, its answer evenly from there to its end; work thrown away by preemption is no service.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from fairlane.sim.attempts import OUTPUT_WEIGHT, Attempt, End, Record
from fairlane.sim.figures.arithmetic import Maybe, fair_parts, jain, percentile, shares
from fairlane.sim.load.workload import CLASSES
from fairlane.sim.setup import TTFT_SLO_S, Setup

BIN_S = 5.0
WINDOW_BINS = 6  # windows of 30 s
RECOVERED_RATIO = 0.9  # of the attainment before the trouble
RECOVERY_WINDOW_S = 10.0
RANKS = range(len(CLASSES))


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run shows; lists are by rank, None is where there is nothing to tell."""

    goodput: float
    attainment: list[Maybe]
    share: list[Maybe]
    share_p5: list[Maybe]
    ttft_s: list[dict[str, Maybe]]
    jain: list[Maybe]
    wasted_ratio: float
    preemptions: int
    yields: int
    false_shed_ratio: Maybe
    retry_after_error_s: Maybe
    recovery_s: Maybe


class Measure:
    """Computes the figures of one run, and of its oracle run if there is one."""

    def __init__(self, setup: Setup, record: Record) -> None:
        self.setup = setup
        self.record = record
        self.begin = setup.warmup_s
        self.end = setup.scored_until_s
        self.bins = max(1, int(setup.duration_s // BIN_S))

    def figures(self, oracle: Record | None) -> Figures:
        """All of them."""
        served = self._served()
        return Figures(
            goodput=self._goodput(),
            attainment=[self._attainment(rank) for rank in RANKS],
            share=shares([math.fsum(map(math.fsum, served[rank].values())) for rank in RANKS]),
            share_p5=[self._share_p5(rank, served) for rank in RANKS],
            ttft_s=[self._ttft(rank) for rank in RANKS],
            jain=[self._jain(rank, served[rank]) for rank in RANKS],
            wasted_ratio=self._wasted_ratio(),
            preemptions=self.record.preemptions,
            yields=sum(attempt.yields for attempt in self._ended()),
            false_shed_ratio=_false_sheds(oracle, self.begin, self.end) if oracle else None,
            retry_after_error_s=self._retry_after_error(),
            recovery_s=self._recovery(),
        )

    def _ended(self) -> Iterator[Attempt]:
        return (a for a in self.record.attempts if a.ended_at is not None and self.begin <= a.ended_at < self.end)

    def _goodput(self) -> float:
        """Cost per second of what was completed, its first token within the objective; offline work counts whenever it completes."""
        return sum(a.cost for a in self._ended() if useful(a)) / self.setup.duration_s

    def _wasted_ratio(self) -> float:
        """Part of the engines' work, for what ended, that was not for a useful answer, or was done again after a preemption or a yield."""
        worked = good = 0
        for attempt in self._ended():
            worked += attempt.prefilled + OUTPUT_WEIGHT * attempt.produced + attempt.vain
            good += attempt.cost if useful(attempt) else 0
        return 1 - good / worked if worked else 0.0

    def _attainment(self, rank: int) -> Maybe:
        """Part of the requests that arrived whose first token came in time. What was refused, shed or given up is a miss.

        A request is one however often its client tries: it attains if any try does. One whose fate the run does not show is
        left out.
        """
        return _part([a for a in self._fates() if a[0].arrival.rank == rank and self.begin <= a[0].at < self.end])

    def _fates(self) -> list[tuple[Attempt, bool]]:
        """The first try of each request whose fate is known, and whether any of its tries was in time."""
        fates: dict[int, tuple[Attempt, bool]] = {}
        unknown = set()
        for attempt in self.record.attempts:
            slo = TTFT_SLO_S[attempt.arrival.rank]
            first, met = fates.get(attempt.call, (attempt, False))
            fates[attempt.call] = first, met or (useful(attempt) if slo is None else attempt.in_time(slo))
            decided = slo is not None and (attempt.in_time(slo) or self.setup.until_s >= attempt.at + slo)
            if attempt.end is End.OPEN and not decided:
                unknown.add(attempt.call)
        return [fate for call, fate in fates.items() if fate[1] or call not in unknown]

    def _ttft(self, rank: int) -> dict[str, Maybe]:
        """Percentiles over the tries that arrived in the scored time and got a first token."""
        scored = (a for a in self.record.attempts if a.arrival.rank == rank and self.begin <= a.at < self.end)
        times = sorted(a.ttft_s for a in scored if a.ttft_s is not None)
        return {f"p{p}": percentile(times, p) for p in (50, 95, 99)}

    def _served(self) -> list[dict[str, list[float]]]:
        """Service by class, tenant and bin of the scored time."""
        served: list[dict[str, list[float]]] = [defaultdict(lambda: [0.0] * self.bins) for _ in RANKS]
        for attempt in self.record.attempts:
            if attempt.started_at is None:
                continue
            bins = served[attempt.arrival.rank][attempt.arrival.tenant]
            end = self.setup.until_s if attempt.ended_at is None else attempt.ended_at
            first = end if attempt.first_token_at is None else attempt.first_token_at
            self._spread(bins, attempt.started_at, first, min(attempt.prefilled, attempt.arrival.prompt_tokens))
            self._spread(bins, first, end, OUTPUT_WEIGHT * attempt.produced)
        return served

    def _spread(self, bins: list[float], begin: float, end: float, amount: float) -> None:
        """Adds an amount that came evenly between two moments; what lies outside the scored time is dropped."""
        at = (begin - self.begin) / BIN_S
        until = (end - self.begin) / BIN_S
        if until <= at:
            if 0 <= at < len(bins):
                bins[int(at)] += amount
            return
        per_bin = amount / (until - at)
        for i in range(max(0, int(at)), min(len(bins), math.ceil(until))):
            bins[i] += per_bin * (min(until, i + 1) - max(at, i))

    def _windows(self, step: int) -> Iterator[tuple[int, float, float]]:
        """First bin, begin and end of each window."""
        for first in range(0, self.bins - WINDOW_BINS + 1, step):
            begin = self.begin + first * BIN_S
            yield first, begin, begin + WINDOW_BINS * BIN_S

    def _share_p5(self, rank: int, served: list[dict[str, list[float]]]) -> Maybe:
        """5th percentile of the class's share over windows, one beginning each bin, in which it was backlogged throughout."""
        found = []
        for first, begin, end in self._windows(1):
            if not self.record.backlogs[rank].throughout(begin, end):
                continue
            window = slice(first, first + WINDOW_BINS)
            share = shares([math.fsum(math.fsum(bins[window]) for bins in served[r].values()) for r in RANKS])[rank]
            found.append(share or 0.0)
        return percentile(sorted(found), 5)

    def _jain(self, rank: int, served: dict[str, list[float]]) -> Maybe:
        """Jain's index over the class's tenants of what each got to what it was entitled to, over windows with a backlog.

        Entitled to is its max–min fair part of what the class got in the window, no tenant to more than it wanted: what it got,
        and what it had waiting that did not start in the window, shed or not.
        """
        got: dict[str, float] = defaultdict(float)
        entitled: dict[str, float] = defaultdict(float)
        for first, begin, end in self._windows(WINDOW_BINS):
            if not self.record.backlogs[rank].at_all(begin, end):
                continue
            here = {tenant: math.fsum(bins[first : first + WINDOW_BINS]) for tenant, bins in served.items()}
            wanted = defaultdict(float, here)
            for a in self.record.attempts:
                waited = a.arrival.rank == rank and a.at < end and (a.started_at is None or a.started_at >= end)
                if waited and (a.ended_at is None or a.ended_at >= begin):
                    wanted[a.arrival.tenant] += a.cost
            for tenant, part in fair_parts(math.fsum(here.values()), wanted).items():
                got[tenant] += here.get(tenant, 0.0)
                entitled[tenant] += part
        return jain([got[tenant] / part for tenant, part in entitled.items() if part > 0])

    def _retry_after_error(self) -> Maybe:
        """Median of |what a refused client was told − how long it took until a newcomer of its tenant and class was in time|."""
        good: dict[tuple[str, int], list[float]] = defaultdict(list)
        for a in self.record.attempts:
            if a.in_time(TTFT_SLO_S[a.arrival.rank]):
                good[a.arrival.tenant, a.arrival.rank].append(a.at)
        errors = []
        for a in self._ended():
            moments = good[a.arrival.tenant, a.arrival.rank]
            if a.retry_after_s is None or a.ended_at is None or not moments or moments[-1] < a.ended_at:
                continue
            errors.append(abs(a.retry_after_s - (moments[bisect_left(moments, a.ended_at)] - a.ended_at)))
        return median(errors) if errors else None

    def _recovery(self) -> Maybe:
        """Seconds from the end of the trouble until, over 10 s, tries attain 0.9 of what they did before it began.

        It is tries that count here: requests that succeed after many would hide a storm of them.
        """
        trouble = self.setup.overload
        if trouble is None:
            return None
        tries = [(a, a.in_time(slo)) for a in self.record.attempts if (slo := TTFT_SLO_S[a.arrival.rank]) is not None]
        before = _part([a for a in tries if self.begin <= a[0].at < trouble.begin_s])
        if before is None:
            return None
        last = max(0, int(self.end - trouble.end_s - RECOVERY_WINDOW_S))
        for later in range(last):
            begin = trouble.end_s + later
            part = _part([a for a in tries if begin <= a[0].at < begin + RECOVERY_WINDOW_S])
            if part is None or part >= RECOVERED_RATIO * before:
                return float(later)
        return float(last)


def useful(attempt: Attempt) -> bool:
    """Whether it was answered in full, its first token within the objective."""
    return attempt.end is End.COMPLETED and attempt.in_time(TTFT_SLO_S[attempt.arrival.rank])


def _part(fates: Sequence[tuple[Attempt, bool]]) -> Maybe:
    return sum(met for _, met in fates) / len(fates) if fates else None


def _false_sheds(oracle: Record, begin: float, end: float) -> Maybe:
    """Part of the sheds undone in the oracle run whose first token then came within the objective."""
    kept = [a for a in oracle.attempts if a.kept_at is not None and begin <= a.kept_at < end]
    return sum(a.in_time(TTFT_SLO_S[a.arrival.rank]) for a in kept) / len(kept) if kept else None
