"""What a good configuration means: defaults, what follows from what, and that it is frozen and opens nothing."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from fairlane.settings import Settings, load, parse
from fairlane.settings.fields import Section, split_address
from fairlane.settings.model import SECTIONS, keys_of
from fairlane.settings.reference import EXAMPLE

EVERY_KEY = """\
server:
  {listen: "[::1]:80", admin_listen: "localhost:0", max_body_bytes: 1, max_connections: 2, drain_s: 0, workers: 1, access_log: false}
pools:
  - name: p
    models: {a: b}
    slots: 3
    tpot_slo_s: 0.25
    prefix_affinity: false
    fast_lane: {places: 2, kv: 0.1, max_input: 3, max_output: 4}
    engines:
      - {name: x, kind: embedded, model_file: m.gguf, slots: auto, kv_tokens: 9, prefill_tokens: 7, context: 8}
      - {name: y, kind: llamacpp, url: "https://h:1/base", api_key: k, connect_s: 1, first_byte_s: 2, idle_s: 3, probe_s: 4e0}
      - {name: z, kind: vllm, url: "dns+http://h:2", lookup_s: 1, slots: auto, priority_step_s: 0.5, price_per_hour: 0,
         scheduler_plugin: true}
backlog: {max_queued: 5}
classes:
  - name: c
    min_share: 1
    max_wait_s: 9
    ttft_slo_s: 9
    shed: wait
    max_queued: 0
    max_queued_cost: 7
    max_running: 1.0
    promote_after_s: 4
    short_first_s: 0
    retry_after_min_s: 0.5
    retry_after_max_s: 0.5
    yield_waste: 0
scheduling: {policy: gmp, input_weight: 2, output_weight: 3}
predictor: {state_file: s.json, model_file: m.json}
tenants:
  - name: Zürich 東京
    key_hashes: ["sha256:ABCDEFabcdef0123456789012345678901234567890123456789012345678901"]
    class: c
    best_class: c
    weight: 0.5
    max_running: 1
    max_queued: 0
    requests_per_minute: {rate: 0.5, burst: 1}
    tokens_per_minute: 10
    models: [a]
    trust_priority: true
anonymous:
  {class: c, best_class: c, weight: 3, max_running: 4, max_queued: 5, requests_per_minute: 6, tokens_per_minute: {rate: 7, burst: 8}}
"""


def test_without_a_file_anyone_on_this_machine_may_call_the_embedded_model() -> None:
    """No file gives one embedded engine, the four classes, loopback, and callers without a key up to the best class."""
    settings = load(None)
    assert (settings.server.listen, settings.server.admin_listen) == ("127.0.0.1:8080", "127.0.0.1:8081")
    assert [(pool.name, pool.aliases, pool.slots) for pool in settings.pools] == [("main", {"smollm2-135m": "smollm2-135m"}, "auto")]
    assert [(engine.name, engine.kind) for engine in settings.pools[0].engines] == [("local", "embedded")]
    assert [(c.name, c.min_share, c.max_wait_s, c.max_queued, c.ttft_slo_s) for c in settings.classes] == [
        ("realtime", 0.30, 8, 200, None),
        ("paid", 0.15, 20, 500, None),
        ("free", 0.10, 60, 500, None),
        ("batch", 0.10, 86400, 100_000, None),
    ]
    assert settings.anonymous is not None
    assert (settings.anonymous.class_name, settings.anonymous.best_class, settings.tenants) == ("free", "realtime", ())


@pytest.mark.parametrize("text", ["", "# only a remark\n", "---\n", "~"])
def test_an_empty_file_is_no_file(tmp_path: Path, text: str) -> None:
    """A file that says nothing means what no file means."""
    file = tmp_path / "empty.yaml"
    file.write_text(text)
    assert load(file) == load(None)


def test_in_a_file_anonymous_is_absent_unless_it_is_written() -> None:
    """A file with tenants and nothing else demands a key of everyone."""
    text = "tenants:\n  - {name: t, class: free, key_hashes: ['sha256:" + "0" * 64 + "']}\n"
    settings = parse(text, "f.yaml")
    assert settings.anonymous is None
    assert settings.pools == load(None).pools


def test_every_key_is_taken() -> None:
    """A file that uses each key there is gives a value for each, none of them its default."""
    settings = parse(EVERY_KEY, "f.yaml")
    unset = [
        (type(section).__name__, name)
        for section in _sections(settings)
        for name in type(section).model_fields
        if name not in section.model_fields_set
    ]
    assert unset == [
        *(("EngineSettings", name) for name in ("url", "lookup_s", "api_key", "connect_s", "first_byte_s", "idle_s", "probe_s")),
        *(("EngineSettings", name) for name in ("priority_step_s", "price_per_hour", "scheduler_plugin")),
        *(("EngineSettings", name) for name in ("lookup_s", "model_file", "slots", "kv_tokens", "prefill_tokens", "context")),
        *(("EngineSettings", name) for name in ("priority_step_s", "price_per_hour", "scheduler_plugin", "api_key", "model_file")),
        *(
            ("EngineSettings", name)
            for name in ("kv_tokens", "prefill_tokens", "context", "connect_s", "first_byte_s", "idle_s", "probe_s")
        ),
        *[("RateLimit", "burst")] * 2,
    ]
    assert [one.probe_s for one in settings.pools[0].engines] == [5, 4, 1]
    assert settings.tenants[0].name == "Zürich 東京"


def _sections(section: Section) -> list[Section]:
    """A section and all below it."""
    found = [section]
    for name in type(section).model_fields:
        value = getattr(section, name)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, Section):
                found += _sections(one)
    return found


def test_the_table_of_sections_is_complete() -> None:
    """Every section that a file can hold stands in the table by which faults and reference are written, at its place."""
    everything = parse(EVERY_KEY, "f.yaml")
    assert {type(section) for section in _sections(everything)} == {section for _, section in SECTIONS}
    for pattern, section in SECTIONS:
        place: object = everything
        for key in filter(None, re.split(r"\.|(?=\[\])", pattern)):
            place = place[-1] if key == "[]" and isinstance(place, tuple) else getattr(place, key)
        assert type(place) is section, pattern


def test_a_file_uses_the_words_of_the_table() -> None:
    """Keys are the names that stand in the file, `class` included."""
    assert keys_of(dict(SECTIONS)["anonymous"])[:2] == ("class", "best_class")


def test_the_example_of_the_documentation_works() -> None:
    """Whoever copies the example gets a configuration that starts once its variable is set."""
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
    example = page.partition("```yaml\n")[2].partition("```")[0]
    assert example == EXAMPLE
    settings = parse(example, "example.yaml", {"ENGINE_KEY": "sk-1"})
    assert [engine.api_key for pool in settings.pools for engine in pool.engines] == ["sk-1", "sk-1", None]
    assert settings.pools[0].aliases == {"llama-3.1-8b": "llama-3.1-8b", "fast": "llama-3.1-8b"}


@pytest.mark.parametrize(
    ("wait", "short_first", "least", "most"),
    [(1, 1, 1, 10), (8, 1, 1, 12), (20, 2.5, 1, 30), (60, 7.5, 2, 90), (900, 112.5, 30, 1350), (86400, 600, 30, 3600)],
)
def test_what_follows_from_the_longest_wait(wait: float, short_first: float, least: float, most: float) -> None:
    """Overtaking and Retry-After scale with the class's patience, within bounds."""
    one = parse(f"classes: [{{name: c, max_wait_s: {wait}}}]\nanonymous: {{class: c}}", "f.yaml").classes[0]
    assert (one.short_first_s, one.retry_after_min_s, one.retry_after_max_s) == (short_first, least, most)


@pytest.mark.parametrize(
    ("written", "rate", "burst"),
    [("600", 600, 1500), ("{rate: 600}", 600, 1500), ("{rate: 600, burst: 600}", 600, 600), ("0.1", 0.1, 1), ("{rate: 2, burst: 1}", 2, 1)],
)
def test_a_bucket_holds_two_and_a_half_minutes_by_default(written: str, rate: float, burst: float) -> None:
    """A plain number is the rate; the default capacity is 2.5 times the rate, and at least one request fits."""
    anonymous = parse(f"anonymous: {{class: free, requests_per_minute: {written}}}", "f.yaml").anonymous
    assert anonymous is not None
    assert anonymous.requests_per_minute is not None
    assert (anonymous.requests_per_minute.rate, anonymous.requests_per_minute.burst) == (rate, burst)


def test_references_are_replaced_once_in_whole_or_in_part() -> None:
    """A reference may be a part of a text, and what it brings in is not looked at again."""
    text = (
        "pools:\n  - name: p\n    models: [m]\n    engines:\n"
        '      - {name: e, kind: openai, url: "http://${HOST}:${PORT}/v1", api_key: "${KEY}"}\n'
        "anonymous: {class: free}\n"
    )
    engine = parse(text, "f.yaml", {"HOST": "engine", "PORT": "8000", "KEY": "a${HOST}b$"}).pools[0].engines[0]
    assert (engine.url, engine.api_key) == ("http://engine:8000/v1", "a${HOST}b$")


def test_the_environment_of_the_process_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an environment of its own a text sees the process's."""
    monkeypatch.setenv("FAIRLANE_TEST_CLASS", "paid")
    anonymous = parse("anonymous: {class: '${FAIRLANE_TEST_CLASS}'}", "f.yaml").anonymous
    assert anonymous is not None
    assert anonymous.class_name == "paid"


def test_an_alias_repeats_what_its_anchor_holds() -> None:
    """YAML's own way to write a thing once works."""
    text = "classes:\n  - {name: a, max_wait_s: &long 600}\n  - {name: b, max_wait_s: *long}\nanonymous: {class: a}\n"
    assert [one.max_wait_s for one in parse(text, "f.yaml").classes] == [600, 600]


def test_a_leading_zero_is_no_octal_number(tmp_path: Path) -> None:
    """Scalars mean what YAML 1.2 says, also behind a byte order mark."""
    file = tmp_path / "bom.yaml"
    file.write_text("backlog: {max_queued: 010}\nanonymous: {class: free}\n", encoding="utf-8-sig")
    assert load(file).backlog.max_queued == 10


def test_settings_are_frozen_and_show_no_secret() -> None:
    """Nobody can change a configuration in use, and printing it gives no key away."""
    settings = parse(EVERY_KEY.replace("api_key: k", "api_key: sk-secret"), "f.yaml")
    with pytest.raises(ValidationError):
        settings.server.drain_s = 1
    assert settings.pools[0].engines[1].api_key == "sk-secret"
    assert "sk-secret" not in repr(settings)
    assert "sha256" not in repr(settings)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("[::1]:0", ("::1", 0)),
        ("localhost:65535", ("localhost", 65535)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
    ],
)
def test_addresses_are_split(text: str, address: tuple[str, int]) -> None:
    """Host and port come apart, an IPv6 address without its brackets."""
    assert split_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "8080", ":8080", "h:", "h:x", "h:65536", "h:-1", "::1:80", "[::1]", "h h:1", "http://h:1", "u@h:1", "h:٣"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """A host must be written out, and a port must be one."""
    with pytest.raises(ValueError, match=r"HOST:PORT|a port from 0 to 65535"):
        split_address(text)


def test_both_addresses_are_at_hand() -> None:
    """The server's addresses are split once, by the settings."""
    server = Settings().server
    assert (server.listen_address, server.admin_address) == (("127.0.0.1", 8080), ("127.0.0.1", 8081))
