"""The checkers of shares, over every stretch of time in which a share is promised.

I1 a class gets its minimum, I2 tenants share by weight, I5 idle time gains nothing (a stretch begins when its parties have just
come back), I10 the rest goes to the most urgent class, I11 whatever the predictions are worth (they are off by up to ×4).

All are bounds on how far a difference of served costs rises above its least value in the stretch: a `Drift`. Served cost is what was
charged, corrected. The bounds are those that were measured, tighter than the proven ones with their D + 2. A correction of what had
started before that least value is no service of the stretch: it widens the bound.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

from fairlane.core.values import BASIS_POINTS
from tests.swarm.checks import held
from tests.swarm.model import TENANTS_SHARE, FlowName, Job, Line, Model

Name = Line | FlowName
Factors = dict[Any, int]


class Drift:
    """How far a weighted sum of served costs has risen above its least value."""

    __slots__ = ("factors", "least", "moment", "slack")

    def __init__(self, factors: Factors) -> None:
        self.factors = factors
        self.least: int | None = None
        self.moment = 0
        self.slack = 0

    def rise(self, served: Counter[Name], starts: int) -> int:
        """Takes what was served until now, in so many starts; returns what of the rise is service of the stretch."""
        value = sum(factor * served[name] for name, factor in self.factors.items())
        if self.least is None or value <= self.least:
            self.least, self.moment, self.slack = value, starts, 0
        return value - self.least - self.slack

    def correct(self, name: Name, job: Job, delta: int) -> None:
        """A job of this name was charged so much more."""
        if job.moment <= self.moment:
            self.slack += abs(self.factors.get(name, 0) * delta)


class Shares:
    """Follows one run."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._drifts: dict[tuple[object, ...], Drift] = {}
        self._followed: set[tuple[object, ...]] = set()
        self._passing: set[Name] = set()  # flows and classes that were served by a fast lane, whosever turn it was
        self._unclean: set[Line] = set()  # classes of whose heads one was passed since their backlog began, as it did not fit

    def restart(self) -> None:
        """Shares or weights changed: every stretch begins anew."""
        self._drifts.clear()

    def after(self, started: list[Job]) -> None:
        """After a step whose decisions the model has taken."""
        self._followed.clear()
        self._unclean |= {j.line for j in started if j.request.bypassed}
        self._unclean |= {j.line for j in self.model.queued.values() if j.request.bypassed}
        for job in started:
            if job.passed:
                self._passing |= {job.flow, job.line}
                self._unclean |= set(self.model.lines(job.request.pool))
        for pool in self.model.specs:
            lines = {line: self.model.competing(line) for line in self.model.lines(pool)}
            self._unclean -= {line for line, heads in lines.items() if not heads}
            if self.model.policy in TENANTS_SHARE:
                for heads in lines.values():
                    for one, other in combinations(sorted(j.flow for j in heads if j.flow not in self._passing), 2):
                        self._tenants(one, other)
            clean = [line for line, heads in lines.items() if heads and line not in self._unclean | self._passing]
            if self.model.policy == "gmp":
                self._minimum(pool, clean)
            elif self.model.policy == "weighted":
                for line, another in combinations(clean, 2):
                    self._classes(line, another)
        self._drifts = {name: drift for name, drift in self._drifts.items() if name in self._followed}
        self.model.corrections.clear()

    def _tenants(self, one: FlowName, other: FlowName) -> None:
        """Two tenants of a class that both compete are within twice their largest costs, over their weights."""
        a, b = self.model.weight(one[2]), self.model.weight(other[2])
        largest = self.model.cost_max[one] * b + self.model.cost_max[other] * a
        self._both("I2", {one: b, other: -a}, self.model.flow_served, 2 * largest)

    def _classes(self, line: Line, another: Line) -> None:
        """Two classes under `weighted` likewise."""
        shares = {other: self.model.classes[other].min_share for other in self.model.lines(line[0])}
        a, b = (max(1, shares[x]) if any(shares.values()) else 1 for x in (line, another))
        bound = 2 * self._largest(line[0]) * (a + b)
        self._both("I2 classes", {line: b, another: -a}, self.model.served, bound)

    def _minimum(self, pool: str, clean: list[Line]) -> None:
        """A backlogged class is at most two largest costs behind its minimum; and as far ahead, while the first has work."""
        bound = 2 * self._largest(pool) * BASIS_POINTS
        promotes = any(self.model.classes[line].promote_after_s is not None for line in self.model.lines(pool))
        for line in clean:
            share = self.model.classes[line].min_share
            factors = {other: share - BASIS_POINTS * (other == line) for other in self.model.lines(pool)}
            self._follow(("I1", line), factors, self.model.served, bound)
            if line[1] > 0 and (pool, 0) in clean and not promotes:
                ahead = {other: -factor for other, factor in factors.items()}
                self._follow(("I10 rest", line), ahead, self.model.served, bound)

    def _both(self, invariant: str, factors: dict[Any, int], served: Counter[Any], bound: int) -> None:
        self._follow((invariant, *factors), factors, served, bound)
        self._follow((invariant, *reversed(factors)), {name: -factor for name, factor in factors.items()}, served, bound)

    def _follow(self, name: tuple[object, ...], factors: dict[Any, int], served: Counter[Any], bound: int) -> None:
        self._followed.add(name)
        drift = self._drifts.get(name)
        if drift is None:
            drift = self._drifts[name] = Drift(factors)
        for job, delta in self.model.corrections:
            drift.correct(job.flow if served is self.model.flow_served else job.line, job, delta)
        rise = drift.rise(served, self.model.starts)
        held(rise <= bound, *map(str, name), "rose by", rise, "of", bound)

    def _largest(self, pool: str) -> int:
        return max((cost for flow, cost in self.model.cost_max.items() if flow[0] == pool), default=0)
