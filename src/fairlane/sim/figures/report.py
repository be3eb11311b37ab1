"""Figures of several seeds as one row a policy: for programs, and for people with the spread beside them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from fairlane.sim.figures.arithmetic import Maybe
from fairlane.sim.figures.measures import Figures
from fairlane.sim.load.workload import CLASSES

_DIGITS = 4


def row(policy: str, runs: Sequence[Figures]) -> dict[str, Any]:
    """Medians over the seeds; a figure that only some seeds have is the median of those."""

    def by_class(figure: str) -> dict[str, Maybe]:
        return {name: _median([getattr(run, figure)[rank] for run in runs]) for rank, name in enumerate(CLASSES)}

    return {
        "policy": policy,
        "goodput": _median([run.goodput for run in runs]),
        "attainment": by_class("attainment"),
        "share": by_class("share"),
        "share_p5": by_class("share_p5"),
        "ttft_s": {
            name: {p: _median([run.ttft_s[rank][p] for run in runs]) for p in ("p50", "p95", "p99")} for rank, name in enumerate(CLASSES)
        },
        "jain": by_class("jain"),
        "wasted_ratio": _median([run.wasted_ratio for run in runs]),
        "preemptions": _median([run.preemptions for run in runs]),
        "yields": _median([run.yields for run in runs]),
        "false_shed_ratio": _median([run.false_shed_ratio for run in runs]),
        "retry_after_error_s": _median([run.retry_after_error_s for run in runs]),
        "recovery_s": _median([run.recovery_s for run in runs]),
    }


def text(results: Sequence[tuple[str, Sequence[Figures]]]) -> str:
    """A table of all policies, then one of each policy's classes. `a ± b`: median, and half the way from least to greatest."""
    whole: list[Sequence[str]] = [("policy", "goodput", "wasted", "preempted", "yields", "false shed", "retry-after error", "recovery")]
    classes: list[Sequence[str]] = [("policy", "class", "attainment", "share", "share p5", "TTFT p50", "p95", "p99 s", "Jain")]
    for policy, runs in results:
        whole.append(
            (
                policy,
                _spread([run.goodput for run in runs], 0),
                _spread([run.wasted_ratio for run in runs], 3),
                _spread([run.preemptions for run in runs], 0),
                _spread([run.yields for run in runs], 0),
                _spread([run.false_shed_ratio for run in runs], 3),
                _spread([run.retry_after_error_s for run in runs], 1),
                _spread([run.recovery_s for run in runs], 0),
            )
        )
        for rank, name in enumerate(CLASSES):
            times = ([run.ttft_s[rank][p] for run in runs] for p in ("p50", "p95", "p99"))
            parts = ([getattr(run, figure)[rank] for run in runs] for figure in ("attainment", "share", "share_p5"))
            jains = [run.jain[rank] for run in runs]
            classes.append((policy, name, *(_spread(p, 3) for p in parts), *(_spread(t, 2, alone=True) for t in times), _spread(jains, 3)))
    return f"{_table(whole)}\n{_table(classes)}"


def _median(values: Sequence[Maybe]) -> Maybe:
    known = [value for value in values if value is not None]
    return round(median(known), _DIGITS) if known else None


def _spread(values: Sequence[Maybe], digits: int, *, alone: bool = False) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    middle = f"{median(known):.{digits}f}"
    return middle if alone or len(known) == 1 else f"{middle} ± {(max(known) - min(known)) / 2:.{digits}f}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in rows)
