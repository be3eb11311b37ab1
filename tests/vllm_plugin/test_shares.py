"""The order is the gateway's own, with its bounds: start for start against the scheduler, and in shares."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from fairlane.core.request import Request, Start
from fairlane.core.values import BASIS_POINTS, Engine, Outcome, Tenant, Usage
from tests.core.world import FOUR, make
from tests.core.world import request as core_request
from tests.vllm_plugin.stand_in import Batch, asking, line

LARGEST_CHARGE = 800 + 4 * 600  # predicted three times too long


@pytest.mark.parametrize("depth", [1, 8])
@pytest.mark.parametrize("seed", range(3))
def test_what_starts_is_what_the_gateway_would_start(seed: int, depth: int) -> None:
    """The same requests, arriving and ending alike, start in the same order in the engine as in the gateway's scheduler."""
    draw = random.Random(seed)
    waiting, scheduler = line(), make((Engine("e", depth),))
    batch = Batch(waiting, depth, seed)
    tenants = {name: Tenant(name) for name in "abc"}
    twins: dict[str, Request] = {}
    started: list[Request] = []

    def both_fill() -> None:
        batch.fill()
        for decision in scheduler.poll(now):
            assert isinstance(decision, Start)
            started.append(decision.request)

    for step in range(1500):
        now = step / 100
        if draw.random() < 0.55:
            rank, name, prompt, output = draw.randrange(4), draw.choice("abc"), draw.randint(1, 800), draw.randint(1, 200)
            theirs = asking(rank, name, num_prompt_tokens=prompt, max_tokens=output, arrival_time=now)
            ours = core_request(tenants[name], rank, now, prompt=prompt, output=output)
            twins[theirs.request_id] = ours
            waiting.add_request(theirs)
            scheduler.submit(ours, now)
            both_fill()
        elif batch.running:
            output = draw.randint(1, 200)
            ended = batch.end(output)
            twin = twins[ended.request_id]
            scheduler.settle(twin, Usage(twin.prompt_tokens, output), Outcome.COMPLETED, now)
            scheduler.depart(twin)
            both_fill()
    assert [twins[request.request_id] for request in batch.started] == started
    assert len(started) > 500


def served_while_backlogged(depth: int, seed: int, tenants: dict[int, list[str]], environ: dict[str, str]) -> Counter[tuple[int, str]]:
    """True cost of what ran of each class and tenant over 3,000 ends, each of them having three waiting at every moment."""
    waiting = line(environ)
    batch = Batch(waiting, depth, seed)
    draw = random.Random(seed)
    true: dict[str, tuple[int, str, int]] = {}
    ran: Counter[tuple[int, str]] = Counter()

    def add(rank: int, name: str) -> None:
        prompt, output = draw.randint(1, 800), draw.randint(1, 200)
        foretold = max(1, round(output * draw.choice((1 / 3, 0.5, 1, 2, 3))))
        request = asking(rank, name, num_prompt_tokens=prompt, max_tokens=600, output=foretold)
        true[request.request_id] = rank, name, output
        waiting.add_request(request)

    def step() -> None:
        seen = len(batch.started)
        batch.fill()
        for begun in batch.started[seen:]:
            rank, name, output = true[begun.request_id]
            ran[rank, name] += begun.num_prompt_tokens + 4 * output
            add(rank, name)
        last = draw.choice(batch.running)
        batch.end_of(last, true[last.request_id][2])

    for rank, names in tenants.items():
        for name in names * 3:
            add(rank, name)
    for _ in range(3000):
        step()
    return ran


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("depth", [1, 8, 32])
def test_every_class_gets_its_minimum_and_the_first_the_rest(depth: int, seed: int) -> None:
    """Shortfall of a guarantee stays within 2 of the largest charge, whatever the predictions are worth."""
    ran = served_while_backlogged(depth, seed, {c.rank: [f"{c.name}-{i}" for i in range(3)] for c in FOUR}, {})
    total = sum(ran.values())
    for c in FOUR:
        mine = sum(served for (rank, _), served in ran.items() if rank == c.rank)
        assert mine >= c.min_share / BASIS_POINTS * total - 2 * LARGEST_CHARGE
        if c.rank == 0:
            assert mine >= 0.65 * total - 8 * LARGEST_CHARGE


@pytest.mark.parametrize("depth", [1, 8, 32])
def test_tenants_share_by_weight(depth: int, tmp_path: Path) -> None:
    """Served cost over weight of two backlogged tenants differs by at most 4 of the largest charges."""
    weights = {"a": 1.0, "b": 2.0, "c": 4.0}
    configuration = "anonymous: {class: free}\ntenants:\n" + "".join(
        f"  - {{name: {name}, weight: {weight}, class: free, key_hashes: ['sha256:{i:064x}']}}\n"
        for i, (name, weight) in enumerate(weights.items())
    )
    path = tmp_path / "fairlane.yaml"
    path.write_text(configuration, encoding="utf-8")
    ran = served_while_backlogged(depth, 1, {2: list(weights)}, {"FAIRLANE_CLASSES": str(path)})
    for a, b in combinations(weights, 2):
        assert abs(ran[2, a] / weights[a] - ran[2, b] / weights[b]) <= 4 * LARGEST_CHARGE
