"""What a scrape says about what was counted."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from fairlane.core.values import Outcome
from fairlane.errors import RULES, Family, Reason
from fairlane.telemetry.histogram import BOUNDS_S
from fairlane.telemetry.metrics import ClassSample, EngineSample, Metrics, Sample
from fairlane.telemetry.table import TABLE, Kind
from fairlane.telemetry.trail import Trail
from tests.telemetry.requests import past

EMPTY = Sample(classes=(), engines=(), tenants_running={}, client_connections=0)
SHED = {Family.REJECTED, Family.EVICTED}
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def build(sample: Sample = EMPTY, *, classes: Sequence[str] = ("fast", "slow"), tenants: Sequence[str] = ("acme",)) -> Metrics:
    """Metrics of two pools with three engines."""
    return Metrics(classes, {"main": ("a", "b"), "spare": ("c",)}, tenants, lambda: sample)


def scrape(metrics: Metrics) -> Series:
    """All series as Prometheus's own parser reads them."""
    families = text_string_to_metric_families(metrics.render().decode())
    found = [((row.name, frozenset(row.labels.items())), row.value) for family in families for row in family.samples]
    assert len(dict(found)) == len(found), "a series is shown twice"
    return dict(found)


def value(metrics: Metrics, name: str, **labels: str) -> float:
    """One series of a scrape; `cls` stands for the label `class`."""
    labels = {"class" if key == "cls" else key: text for key, text in labels.items()}
    return scrape(metrics)["fairlane_" + name, frozenset(labels.items())]


def served(pool: str, cls: str, tokens_in: int, tokens_out: int, cost: int, *, caller: str = "acme") -> Trail:
    """A request that an engine completed."""
    return past(caller=caller, cls=cls, pool=pool, tokens_in=tokens_in, tokens_out=tokens_out, cost=cost, outcome="completed")


def test_a_scrape_shows_the_table_and_nothing_else() -> None:
    """Names, types and help texts of a scrape are those of the table, in its order."""
    lines = build().render().decode().splitlines()
    described = [tuple(line.split(" ", 3)[2:]) for line in lines if line.startswith("# HELP")]
    typed = [tuple(line.split(" ")[2:]) for line in lines if line.startswith("# TYPE")]
    assert described == [(row.name, row.help) for row in TABLE]
    assert typed == [(row.name, str(row.kind)) for row in TABLE]


def test_what_gave_way_is_counted_by_class() -> None:
    """Times and tokens, of the class that gave way alone."""
    metrics = build()
    metrics.yielded("slow", 100)
    metrics.yielded("slow", 3)
    assert [value(metrics, "yielded_total", cls=cls) for cls in ("fast", "slow")] == [0, 2]
    assert [value(metrics, "yielded_tokens_total", cls=cls) for cls in ("fast", "slow")] == [0, 103]


def test_each_series_has_the_labels_of_its_row() -> None:
    """No series has a label that the table does not name, nor lacks one."""
    rows = {row.name: row for row in TABLE}
    suffixes = {row.name + suffix: row for row in TABLE if row.kind is Kind.HISTOGRAM for suffix in ("_bucket", "_sum", "_count")}
    for name, labels in scrape(build()):
        names = {label for label, _ in labels}
        assert names - {"le"} == set((rows | suffixes)[name].labels)
        assert ("le" in names) == name.endswith("_bucket")


def test_every_series_starts_at_zero() -> None:
    """All combinations of labels exist before anything happens, so that a rate sees each first event."""
    shown = scrape(build())
    assert set(shown.values()) == {0.0}
    of = {row.name: sum(name == row.name for name, _ in shown) for row in TABLE}
    assert of["fairlane_requests_total"] == (2 + 1) * 6
    assert of["fairlane_tokens_total"] == 2 * 2
    assert of["fairlane_served_cost_total"] == of["fairlane_backlog_requests"] == 2 * 2
    assert of["fairlane_engine_up"] == 3
    assert of["fairlane_tenant_running_requests"] == 2
    assert of["fairlane_tenant_requests_total"] == 2 * 6
    assert of["fairlane_tenant_tokens_total"] == 2 * 2


@pytest.mark.parametrize("outcome", [*Outcome, Family.REJECTED, Family.EVICTED, Family.INVALID])
def test_each_outcome_is_counted_apart(outcome: str) -> None:
    """One ended request raises the counter of its class and outcome, and no other."""
    metrics = build()
    metrics.request(past(cls="slow", outcome=outcome), 0.25)
    raised = {key: count for key, count in scrape(metrics).items() if key[0] == "fairlane_requests_total" and count}
    assert raised == {("fairlane_requests_total", frozenset({("class", "slow"), ("outcome", str(outcome))})): 1.0}
    assert value(metrics, "request_seconds_count", cls="slow") == (outcome == "completed")


def test_a_request_of_no_class_is_counted() -> None:
    """What is refused before its class is known is counted as refused, under `none`."""
    metrics = build()
    metrics.request(past(outcome="rejected", reason=Reason.NO_ENGINE), 0.0)
    assert value(metrics, "requests_total", cls="none", outcome="rejected") == 1
    assert value(metrics, "shed_total", cls="none", reason="no_engine") == 1


def test_only_rejections_and_evictions_are_shed() -> None:
    """Each reason of these two families has a series; a client's or an engine's fault is no shedding."""
    metrics = build()
    for reason in Reason:
        metrics.request(past(cls="fast", outcome="rejected", reason=reason), 0.0)
    shed = {
        dict(labels)["reason"]: count
        for (name, labels), count in scrape(metrics).items()
        if name == "fairlane_shed_total" and ("class", "fast") in labels
    }
    assert shed == {str(reason): 1.0 for reason, rule in RULES.items() if rule.family in SHED}


def test_served_work_is_counted_and_shared() -> None:
    """Tokens and cost add up, and a class's share is its part of its own pool's cost."""
    metrics = build()
    metrics.request(served("main", "fast", 10, 5, 30), 0.1)
    metrics.request(served("main", "slow", 20, 10, 60), 0.1)
    metrics.request(served("main", "slow", 0, 3, 10), 0.1)
    metrics.request(served("spare", "fast", 1, 1, 5), 0.1)
    assert value(metrics, "tokens_total", cls="slow", direction="in") == 20
    assert value(metrics, "tokens_total", cls="slow", direction="out") == 13
    assert value(metrics, "served_cost_total", pool="main", cls="slow") == 70
    assert value(metrics, "served_share_ratio", pool="main", cls="slow") == 0.7
    assert value(metrics, "served_share_ratio", pool="spare", cls="fast") == 1.0


def test_tenants_are_counted_apart() -> None:
    """Requests and tokens are counted for the tenant they belong to; a request of no known caller for none."""
    metrics = build()
    metrics.request(past(), 0.1)
    metrics.request(served("main", "slow", 20, 10, 60), 0.1)
    metrics.request(served("main", "slow", 1, 2, 9, caller="anonymous"), 0.1)
    assert sum(count for (name, _), count in scrape(metrics).items() if name == "fairlane_tenant_requests_total") == 2
    assert value(metrics, "tenant_requests_total", tenant="acme", outcome="completed") == 1
    assert value(metrics, "tenant_tokens_total", tenant="acme", direction="in") == 20
    assert value(metrics, "tenant_tokens_total", tenant="anonymous", direction="out") == 2
    with pytest.raises(KeyError):
        metrics.request(served("main", "slow", 1, 1, 1, caller="made-up"), 0.1)


outcomes = st.sampled_from([*Outcome, Family.REJECTED, Family.EVICTED, Family.INVALID])
pasts = st.builds(
    past,
    caller=st.sampled_from(["", "acme", "anonymous"]),
    cls=st.sampled_from(["fast", "slow", "none"]),
    outcome=outcomes,
    reason=st.none() | st.sampled_from(Reason),
)
served_pasts = st.builds(
    past,
    caller=st.sampled_from(["acme", "anonymous"]),
    cls=st.sampled_from(["fast", "slow"]),
    pool=st.sampled_from(["main", "spare"]),
    tokens_in=st.integers(0, 99),
    tokens_out=st.integers(0, 99),
    cost=st.integers(0, 999),
    outcome=outcomes,
)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(pasts | served_pasts, st.floats(0, 2000)), max_size=8))
def test_every_request_is_counted_once(ended: list[tuple[Trail, float]]) -> None:
    """Each series is the sum over the requests that belong to it, whatever they went through."""
    metrics = build()
    for trail, total_s in ended:
        metrics.request(trail, total_s)
    all_of = [trail for trail, _ in ended]
    shown = scrape(metrics)

    def total(name: str, **labels: str) -> float:
        wanted = {("class" if key == "cls" else key, text) for key, text in labels.items()}
        return sum(count for (series, found), count in shown.items() if series == f"fairlane_{name}" and wanted <= found)

    for cls in ("fast", "slow", "none"):
        own = [past for past in all_of if past.cls == cls]
        assert total("requests_total", cls=cls) == len(own)
        assert total("shed_total", cls=cls) == sum(RULES[Reason(past.reason)].family in SHED for past in own if past.reason is not None)
        times = [total_s for past, total_s in ended if past.cls == cls != "none" and past.outcome == "completed"]
        assert total("request_seconds_count", cls=cls) == len(times)
        assert total("request_seconds_sum", cls=cls) == pytest.approx(sum(times))
        assert total("served_cost_total", cls=cls) == sum(past.cost for past in own)
    for tenant in ("acme", "anonymous"):
        own = [past for past in all_of if past.caller == tenant]
        assert total("tenant_requests_total", tenant=tenant) == len(own)
        assert total("tenant_tokens_total", tenant=tenant, direction="in") == sum(past.tokens_in or 0 for past in own)
    assert total("tokens_total", direction="out") == sum(past.tokens_out or 0 for past in all_of)


def test_an_odd_status_or_kind_of_an_engine_is_counted_as_other() -> None:
    """What an engine makes up cannot add a series."""
    metrics = build()
    for status in (429, 503, 418, 777):
        metrics.engine_refused("a", status)
    for kind in ("timeout", "haunted"):
        metrics.engine_failed("b", kind)
    assert value(metrics, "engine_refusals_total", engine="a", status="429") == 1
    assert value(metrics, "engine_refusals_total", engine="a", status="other") == 2
    assert value(metrics, "engine_failures_total", engine="b", kind="timeout") == 1
    assert value(metrics, "engine_failures_total", engine="b", kind="other") == 1


def test_an_unknown_class_or_outcome_is_our_mistake() -> None:
    """A label outside its closed set raises, and counts nothing."""
    metrics = build()
    with pytest.raises(KeyError):
        metrics.request(past(cls="vip", outcome="completed"), 1.0)
    with pytest.raises(KeyError):
        metrics.request(past(cls="fast", outcome="vanished"), 1.0)
    assert scrape(metrics) == scrape(build())
    with pytest.raises(KeyError):
        metrics.request(served("elsewhere", "fast", 1, 1, 1), 0.1)


def test_fc_53_nothing_that_happens_adds_a_series() -> None:
    """The set of series after events of every sort is the set of the first scrape."""
    sample = Sample(
        classes=[ClassSample("main", "fast", 1, 2, 3, 4.0, 0.5), ClassSample("main", "made-up", 1), ClassSample("made-up", "fast", 1)],
        engines=[EngineSample("main", "a", 1, 2, up=True), EngineSample("main", "made-up", 1)],
        tenants_running={"acme": 1, "made-up": 1},
        client_connections=7,
    )
    metrics = build(sample)
    before = set(scrape(metrics))
    for number in range(400):
        metrics.request(past(reason=f"reason-{number}"), 0.1)
        metrics.engine_refused("a", 400 + number)
        metrics.engine_failed("a", f"kind-{number}")
    assert set(scrape(metrics)) == before == set(scrape(build()))


def test_gauges_show_the_sample_of_their_scrape() -> None:
    """Gauges follow the state that is sampled, and what the sample leaves out is 0."""
    samples = [
        Sample(
            classes=[ClassSample("main", "fast", 4, 900, 2, 1.5, 0.3), ClassSample("spare", "fast", 1, 10, 0, 2.5, 0.4)],
            engines=[EngineSample("main", "b", 2, 8, up=True)],
            tenants_running={"acme": 2},
            client_connections=11,
        ),
        EMPTY,
    ]
    metrics = Metrics(("fast",), {"main": ("a", "b"), "spare": ("c",)}, ("acme",), lambda: samples.pop(0))
    first, second = scrape(metrics), scrape(metrics)
    place, engine = frozenset({("pool", "main"), ("class", "fast")}), frozenset({("pool", "main"), ("engine", "b")})
    shown = {
        ("fairlane_backlog_requests", place): 4,
        ("fairlane_backlog_cost", place): 900,
        ("fairlane_running_requests", place): 2,
        ("fairlane_min_share_ratio", place): 0.3,
        ("fairlane_oldest_waiting_seconds", frozenset({("class", "fast")})): 2.5,
        ("fairlane_engine_running_requests", engine): 2,
        ("fairlane_engine_slots", engine): 8,
        ("fairlane_engine_up", engine): 1,
        ("fairlane_tenant_running_requests", frozenset({("tenant", "acme")})): 2,
        ("fairlane_client_connections", frozenset()): 11,
    }
    assert {key: first[key] for key in shown} == shown
    assert {second[key] for key in shown} == {0.0}


def test_fc_31_the_longest_wait_of_each_class_is_visible() -> None:
    """The largest wait so far stays, class by class."""
    metrics = build()
    for seconds in (0.2, 41.5, 3.0):
        metrics.waited("slow", seconds)
    metrics.waited("fast", 0.1)
    assert value(metrics, "queue_wait_seconds_max", cls="slow") == 41.5
    assert value(metrics, "queue_wait_seconds_max", cls="fast") == 0.1


def test_a_histogram_counts_by_bucket() -> None:
    """Buckets are cumulative, a value on a bound is at most that bound, and the last bucket holds everything."""
    metrics = build()
    for seconds in (0.0, 0.001, 0.0011, 700.0, 5000.0):
        metrics.first_token("fast", seconds)
    counts = {
        float(dict(labels)["le"]): count
        for (name, labels), count in scrape(metrics).items()
        if name == "fairlane_ttft_seconds_bucket" and ("class", "fast") in labels
    }
    assert sorted(counts) == [*BOUNDS_S, float("inf")]
    assert [counts[bound] for bound in (0.001, 0.002, 500.0, 1000.0, float("inf"))] == [2, 3, 3, 4, 5]
    assert value(metrics, "ttft_seconds_count", cls="fast") == 5
    assert value(metrics, "ttft_seconds_sum", cls="fast") == pytest.approx(5700.0021)


@settings(max_examples=60, deadline=None)
@given(names=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=4, unique=True))
def test_fc_41_a_label_gives_back_any_name(names: list[str]) -> None:
    """Class and tenant names of any characters come back from the text as they were, each its own series."""
    metrics = Metrics(names, {"main": names}, names, lambda: EMPTY)
    shown = scrape(metrics)
    assert {dict(labels)["class"] for name, labels in shown if name == "fairlane_tokens_total"} == set(names)
    assert {dict(labels)["engine"] for name, labels in shown if name == "fairlane_engine_up"} == set(names)
    tenants = [dict(labels)["tenant"] for name, labels in shown if name == "fairlane_tenant_running_requests"]
    assert sorted(tenants) == sorted({*names, "anonymous"})


@pytest.mark.parametrize("name", ['say "hi"', "back\\slash\\n", "two\nlines", "课 程:*{}%", "🦊 fox", "} 1\nforged 2"])
def test_fc_41_hostile_names_are_escaped(name: str) -> None:
    """A name cannot end its label, its line or the text: each line is a comment or one series."""
    metrics = build(tenants=[name])
    lines = metrics.render().decode().split("\n")
    assert all(line.startswith(("# ", "fairlane_")) for line in lines[:-1])
    assert lines[-1] == ""
    escaped = name.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    assert f'fairlane_tenant_running_requests{{tenant="{escaped}"}} 0.0' in lines
