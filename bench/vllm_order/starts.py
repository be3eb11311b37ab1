"""Who started before whom, as the gateway's log and the engine's record tell it."""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from bench.vllm_order.load import BATCH, REALTIME

LOGGED_S = 0.002  # by which times taken from the log can be off


class Start(NamedTuple):
    """A request that started, in Unix time."""

    cls: str
    came_at: float
    started_at: float
    cost: float


class Passed(NamedTuple):
    """How many realtime requests started after a batch request that waited with them, and where batch was not owed that start."""

    realtime: int
    passed: int
    passed_unowed: int


def passed_over(starts: Sequence[Start], share: float, off_s: float = 0.0) -> Passed:
    """Counts them. `share` is batch's guaranteed one; starts within `off_s` of an arrival or a start are taken as simultaneous.

    A start serves batch's guarantee until its cost is no more than that share of all that has started since; then batch is owed the next
    one. Before that it gets only what more urgent classes leave.
    """
    ordered = sorted(starts, key=lambda one: one.started_at)
    owed = _owed(ordered, share)
    batch = [one.started_at for one in ordered if one.cls == BATCH]
    unowed = [at for at, is_owed in zip(batch, owed, strict=True) if not is_owed]
    realtime = [one for one in ordered if one.cls == REALTIME]

    def passed(one: Start, times: Sequence[float]) -> bool:
        return bisect_right(times, one.came_at + off_s) < bisect_left(times, one.started_at - off_s)

    return Passed(len(realtime), sum(passed(one, batch) for one in realtime), sum(passed(one, unowed) for one in realtime))


def _owed(ordered: Sequence[Start], share: float) -> list[bool]:
    """Of each batch start, whether it was owed: policy `gmp` while batch waits all the time, to the cost of one request.

    The scheduler charges estimates and corrects them at the end, so it may find the guarantee used up a little earlier than real costs say.
    """
    owed, tag, total = [], 0.0, 0.0
    for one in ordered:
        if one.cls == BATCH:
            owed.append(tag < total + one.cost)
            tag = max(tag, (tag if owed[-1] else total) + one.cost / max(share, 1e-9))
        total += one.cost
    return owed


def logged(log: Path, costs: Mapping[str, float]) -> list[Start]:
    """The starts that a gateway's log tells of; a request that never started has no time of waiting there, or one to its end."""
    starts = []
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        told = json.loads(line) if line.startswith("{") else {}
        if told.get("event") == "request" and told["engine"] is not None and told["queue_ms"] is not None:
            came_at = datetime.fromisoformat(told["ts"]).timestamp() - told["total_ms"] / 1000
            starts.append(Start(told["class"], came_at, came_at + told["queue_ms"] / 1000, costs[told["class"]]))
    return starts


def recorded(file: Path, name: str, costs: Mapping[str, float]) -> list[Start]:
    """The starts inside the engine of requests whose names begin so, as watched.py wrote them."""
    starts = []
    for line in file.read_text(encoding="utf-8").splitlines():
        request, came_at, started_at = line.split()
        if f"-{name}-" in request:
            cls = REALTIME if f"-{name}-r" in request else BATCH
            starts.append(Start(cls, float(came_at), float(started_at), costs[cls]))
    return starts
