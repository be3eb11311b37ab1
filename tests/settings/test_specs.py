"""The settings as the core's values."""

import pytest

from fairlane.core.values import BucketRate, Engine, PriorityClass, Tenant
from fairlane.settings import Settings, anonymous_tenant, class_specs, engine_spec, load, parse, pool_specs, tenant, tenants

TEXT = """\
pools:
  - name: big
    models: [m]
    slots: 4
    engines:
      - {name: a, kind: openai, url: "http://a:1", kv_tokens: 1000, context: 500}
      - {name: b, kind: openai, url: "http://b:1", slots: 6}
      - {name: c, kind: llamacpp, url: "http://c:1", slots: auto}
  - {name: small, models: [n], engines: [{name: d, kind: embedded}]}
classes:
  - {name: first, min_share: 0.1234, max_wait_s: 30, ttft_slo_s: 3, max_queued: 9, max_queued_cost: 99, max_running: 2}
  - {name: second, max_wait_s: 30, ttft_slo_s: 3, shed: wait, max_running: 0.25, short_first_s: 5}
  - {name: third, retry_after_min_s: 3, retry_after_max_s: 4}
tenants:
  - {name: t, class: first, weight: 2, max_running: 3, max_queued: 4, requests_per_minute: 60, key_hashes: ["sha256:HASH"]}
anonymous: {class: third, tokens_per_minute: {rate: 30, burst: 7}}
""".replace("HASH", "0" * 64)


@pytest.fixture(name="settings")
def _settings() -> Settings:
    return parse(TEXT, "f.yaml")


def test_engines_have_their_own_slots_or_the_pools(settings: Settings) -> None:
    """An engine's own number wins, `auto` is not known yet, and a pool without one is auto."""
    big, small = pool_specs(settings)
    assert big.engines == (Engine("a", 4, 1000, context=500), Engine("b", 6), Engine("c", 0))
    assert (small.name, small.engines, small.policy) == ("small", (Engine("d", 0),), "gmp")


def test_the_addresses_of_a_name_are_no_engines_yet() -> None:
    """An entry with a `dns+` URL has no slots of its own; what is at its addresses has its numbers."""
    text = TEXT.replace("engines:", 'engines:\n      - {name: n, kind: openai, url: "DNS+http://n:1", context: 9, price_per_hour: 1.5}', 1)
    settings = parse(text, "f.yaml")
    pool = settings.pools[0]
    assert [engine.name for engine in pool_specs(settings)[0].engines] == ["a", "b", "c"]
    entry = next(engine for engine in pool.engines if engine.looked_up)
    assert (entry.name, entry.lookup_s, entry.price_per_hour) == ("n", 5.0, 1.5)
    assert engine_spec(pool, entry) == Engine("n", 4, context=9)


def test_classes_become_ranks_with_exact_shares(settings: Settings) -> None:
    """Order gives the rank, shares are basis points, and the deadline is the SLO's unless late answers are wanted."""
    assert class_specs(settings, 10) == (
        PriorityClass("first", 0, 1234, 9, 99, 30.0, 3.0, 2, None, 3.75, 1.0, 45.0),
        PriorityClass("second", 1, 0, 1000, None, 30.0, None, 2, None, 5.0, 1.0, 45.0),
        PriorityClass("third", 2, 0, 1000, None, 60.0, None, None, None, 7.5, 3.0, 4.0),
    )


@pytest.mark.parametrize(("slots", "running"), [(0, 1), (1, 1), (3, 1), (4, 1), (7, 1), (8, 2), (100, 25)])
def test_a_fraction_of_the_slots_is_rounded_down_but_never_to_nothing(settings: Settings, slots: int, running: int) -> None:
    """A class with a part of a small pool may still run one request, also before the slots are known."""
    assert class_specs(settings, slots)[1].max_running == running


@pytest.mark.parametrize("percent", range(1, 101))
def test_fractions_are_exact(percent: int) -> None:
    """29 % of 100 slots are 29, though 0.29 × 100 is less in floating point."""
    settings = parse(f"classes: [{{name: c, max_running: {percent / 100:.2f}}}]\nanonymous: {{class: c}}", "f.yaml")
    assert class_specs(settings, 100)[0].max_running == percent


def test_a_pool_resolves_fractions_by_the_slots_known_so_far(settings: Settings) -> None:
    """Ten known slots give a class with a quarter two."""
    assert [pool.classes[1].max_running for pool in pool_specs(settings)] == [2, 1]


def test_the_default_classes_share_sixty_five_percent() -> None:
    """Without a file the guaranteed shares are 30, 15, 10 and 10 percent."""
    assert [one.min_share for one in class_specs(load(None), 2)] == [3000, 1500, 1000, 1000]


def test_tenants_get_their_limits_by_the_second(settings: Settings) -> None:
    """Rates are written per minute and kept per second; what has no limit has none."""
    expected = Tenant("t", 2.0, 3, 4, BucketRate(1.0, 150.0), None)
    assert tenant(settings, "t") == expected
    assert tenants(settings) == {"t": expected}


def test_each_flow_of_anonymous_callers_is_a_tenant(settings: Settings) -> None:
    """Callers without a key are told apart by their flow, each with the whole of the limits."""
    assert anonymous_tenant(settings, 7) == Tenant("anonymous-7", tokens=BucketRate(0.5, 7.0))


def test_who_is_not_configured_is_not_made_up(settings: Settings) -> None:
    """An unknown tenant, or an anonymous one where a key is required, is a mistake of the program."""
    with pytest.raises(KeyError):
        tenant(settings, "nobody")
    with pytest.raises(KeyError):
        anonymous_tenant(Settings(), 0)
