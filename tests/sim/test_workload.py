"""Arrivals: as many, as bursty and as long as the tables say, and the same for the same seed."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import mean, pstdev

import pytest

from fairlane.sim.load.lengths import TABLES, Length, table
from fairlane.sim.load.traces import Row, TraceError
from fairlane.sim.load.workload import CLASSES, NOISY, REFERENCE, Mix, Phase, Recorded, TenantLoad
from fairlane.sim.scenarios import SCENARIOS, scenario, surged, traced
from fairlane.sim.setup import Setup

HOURS = 4 * 3600.0


def test_the_reference_workload_is_the_published_one() -> None:
    """Eleven tenants with these classes, rates, variations and lengths."""
    conv, code, moon = TABLES
    assert [(t.name, t.rank, t.rate_per_s, t.cv, t.lengths) for t in REFERENCE.tenants] == [
        ("a", 0, 0.9, 2, conv),
        ("b", 0, 0.9, 1, conv),
        ("c", 0, 0.9, 1, code),
        ("d", 1, 0.5, 1, conv),
        ("e", 1, 0.5, 1, conv),
        ("hog", 1, 2.2, 4, conv),
        ("f", 2, 0.6, 2, conv),
        ("g", 2, 0.6, 1, code),
        ("h", 2, 0.4, 1, moon),
        ("i", 3, 0.35, 1, moon),
        ("j", 3, 0.35, 1, moon),
    ]


@pytest.mark.parametrize(("rate", "cv"), [(0.9, 1.0), (0.9, 2.0), (2.2, 4.0)])
def test_gaps_have_the_wanted_mean_and_variation(rate: float, cv: float) -> None:
    """Over some hours the rate is within 8 % and the coefficient of variation within 10 % of what was asked for."""
    times = [a.at for a in TenantLoad("x", 0, rate, cv, "azure2023_conv").draw(1.5, 1, HOURS)]
    gaps = [b - a for a, b in pairwise(times)]
    assert len(times) / HOURS == pytest.approx(1.5 * rate, rel=0.08)
    assert pstdev(gaps) / mean(gaps) == pytest.approx(cv, rel=0.1)


@pytest.mark.parametrize(
    ("name", "prompt", "output"), [("azure2023_conv", 1182.9, 200.9), ("azure2023_code", 2041.7, 27.64), ("mooncake", 7467.6, 339.6)]
)
def test_tables_keep_the_means_of_their_traces(name: str, prompt: float, output: float) -> None:
    """The shipped samples have the means of the whole traces within half a percent, and nothing that is empty or too long."""
    rows = table(name)
    assert mean(r.prompt_tokens for r in rows) == pytest.approx(prompt, rel=0.005)
    assert mean(r.output_tokens for r in rows) == pytest.approx(output, rel=0.005)
    assert min(min(r) for r in rows) >= 1
    assert max(r.prompt_tokens for r in rows) <= 24_000


def test_drawn_lengths_are_pairs_of_the_table() -> None:
    """Prompt and answer are drawn together, so what they have to do with each other is kept."""
    pairs = set(table("azure2023_code"))
    drawn = TenantLoad("c", 0, 0.9, 1.0, "azure2023_code").draw(1.0, 7, 600.0)
    assert {Length(a.prompt_tokens, a.output_tokens) for a in drawn} <= pairs


def test_a_seed_gives_the_same_arrivals_again() -> None:
    """Equal seeds give equal arrivals, other seeds others, and all in order of time."""
    first, again, other = (REFERENCE.arrivals(1.0, seed, 300.0) for seed in (1, 1, 2))
    assert first == again != other
    assert [a.at for a in first] == sorted(a.at for a in first)


def test_a_surge_leaves_the_other_classes_alone() -> None:
    """Tripling one class changes its own arrivals only."""
    plain = REFERENCE.arrivals(1.0, 1, 2000.0)
    tripled = REFERENCE.surged({"realtime": 3.0}).arrivals(1.0, 1, 2000.0)
    assert [a for a in plain if a.rank] == [a for a in tripled if a.rank]
    counts = Counter(a.rank for a in plain), Counter(a.rank for a in tripled)
    assert counts[1][0] / counts[0][0] == pytest.approx(3.0, rel=0.1)


def test_phases_change_the_rate_while_they_last() -> None:
    """In silence nothing comes, in a burst five times as much, before and after as much as ever."""
    mix = Mix("x", (TenantLoad("x", 0, 10.0, 1.0, "azure2023_conv"),)).phased("y", Phase(100, 200, 0), Phase(200, 300, 5))
    counts = Counter(int(a.at // 100) for a in mix.arrivals(1.0, 3, 400.0))
    assert counts[1] == 0
    assert [counts[i] for i in (0, 2, 3)] == pytest.approx([1000, 5000, 1000], rel=0.1)


def test_one_tenant_in_each_class_is_noisy() -> None:
    """The noisy tenant of each class sends ten times as much as each peer, and the class as much as in the reference."""
    for rank in range(len(CLASSES)):
        noisy, *peers = [t.rate_per_s for t in NOISY.tenants if t.rank == rank]
        assert [noisy / peer for peer in peers] == pytest.approx([10.0] * 3)
        whole = sum(t.rate_per_s for t in REFERENCE.tenants if t.rank == rank)
        assert noisy + sum(peers) == pytest.approx(whole, rel=0.25)


def test_a_recorded_trace_keeps_times_tenants_and_classes() -> None:
    """Load shortens the gaps; a tenant without a class is of one and the same class all along; a class that is told is taken."""
    rows = [Row(float(i), 10, 5, f"t{i % 3}", None) for i in range(30)] + [Row(30.0, 10, 5, "t0", "batch")]
    arrivals = Recorded("x", rows).arrivals(2.0, 1, 100.0)
    assert [a.at for a in arrivals] == [i / 2 for i in range(31)]
    assert arrivals[-1].rank == 3
    assert all(len({a.rank for a in arrivals[:-1] if a.tenant == f"t{i}"}) == 1 for i in range(3))


def test_a_recorded_trace_without_tenants_is_shared_out() -> None:
    """Rows without a tenant go to the tenants of the reference workload in proportion to their rates."""
    rows = [Row(i / 100, 10, 5, None, None) for i in range(5000)]
    counts = Counter(a.tenant for a in Recorded("x", rows).arrivals(1.0, 1, 100.0))
    assert set(counts) == {t.name for t in REFERENCE.tenants}
    assert counts["hog"] / counts["d"] == pytest.approx(2.2 / 0.5, rel=0.2)


def test_an_unknown_class_of_a_trace_is_refused() -> None:
    """A class that there is not is named, with those that there are."""
    with pytest.raises(TraceError, match="unknown class 'vip'; known: realtime, paid, free, batch"):
        Recorded("x", [Row(0.0, 1, 1, None, "vip")]).arrivals(1.0, 1, 10.0)


def test_a_trace_is_found_by_file_and_by_table(tmp_path: Path) -> None:
    """A file is read and scored to its end, a name draws from the table that ships, and anything else is refused."""
    path = tmp_path / "mine.csv"
    path.write_text("t,input_tokens,output_tokens\n0,1,1\n1000,1,1\n")
    found = traced(str(path), Setup("gmp", load=2.0))
    assert (found.warmup_s, found.duration_s) == (60.0, 440.0)
    assert traced("mooncake", Setup("gmp")).source.name == "mooncake"
    with pytest.raises(TraceError, match="no such file, and no table of that name"):
        traced("nowhere", Setup("gmp"))
    with pytest.raises(TraceError, match="cannot surge"):
        surged(found, {"realtime": 3.0})


@pytest.mark.parametrize("name", SCENARIOS)
def test_troubles_fit_into_their_runs(name: str) -> None:
    """Each scenario has time before its trouble to see the normal, and time after it to recover."""
    setup = scenario(name, Setup("gmp"))
    if setup.overload is not None:
        assert setup.overload.begin_s >= setup.warmup_s + 60
        assert setup.scored_until_s >= setup.overload.end_s + 60
