"""FC-51. Values: of the wrong type, out of bounds, or not what a place takes."""

import pytest

from tests.settings.spoil import KINDS, A, Case, check

CASES: dict[str, Case] = {
    "no_workers": ("  drain_s: 60", "  workers: 0", ["3: server.workers: must be at least 1, not 0"]),
    "seconds_as_text": (
        "max_wait_s: 20",
        'max_wait_s: "10s"',
        ["12: classes[0].max_wait_s: must be a number, not the text '10s' (did you mean 10?)"],
    ),
    "minutes_as_text": (
        "max_wait_s: 20",
        "max_wait_s: 2m",
        ["12: classes[0].max_wait_s: must be a number, not the text '2m' (did you mean 120?)"],
    ),
    "number_as_text": (
        "max_wait_s: 20",
        "max_wait_s: '20'",
        ["12: classes[0].max_wait_s: must be a number, not the text '20' (did you mean 20?)"],
    ),
    "digit_groups": (
        "max_queued: 50",
        "max_queued: 50_000",
        ["13: classes[1].max_queued: must be a whole number, not the text '50_000' (did you mean 50000?)"],
    ),
    "sexagesimal": ("max_wait_s: 20", "max_wait_s: 1:30", ["12: classes[0].max_wait_s: must be a number, not the text '1:30'"]),
    "infinity": ("max_wait_s: 20", "max_wait_s: 1e999", ["12: classes[0].max_wait_s: must be a finite number, not inf"]),
    "fraction_of_a_request": ("max_queued: 50", "max_queued: 50.5", ["13: classes[1].max_queued: must be a whole number, not 50.5"]),
    "number_for_text": (
        "name: main",
        "name: 5",
        ["5: pools[0].name: must be a name: letters, digits, '.', '_' or '-', beginning with a letter or digit, at most 64 characters"],
    ),
    "number_for_a_reference": ("    class: paid", "    class: 1", ["17: tenants[0].class: must be text, not 1 (quote it)"]),
    "yes_for_true": (
        "  drain_s: 60",
        "  access_log: no",
        ["3: server.access_log: must be true or false, not the text 'no' (did you mean false?)"],
    ),
    "number_for_true": ("  drain_s: 60", "  access_log: 1", ["3: server.access_log: must be true or false, not 1"]),
    "true_for_number": ("  drain_s: 60", "  drain_s: true", ["3: server.drain_s: must be a number, not true"]),
    "list_for_number": ("  drain_s: 60", "  drain_s: [60]", ["3: server.drain_s: must be a number, not a list"]),
    "text_for_list": (None, "classes: {a: b}\nanonymous: {class: free}", ["1: classes: must be a list, not a mapping"]),
    "text_for_section": ("scheduling: {policy: gmp}", "scheduling: gmp", ["14: scheduling: must be a mapping, not the text 'gmp'"]),
    "no_value": ("max_queued: 50", "max_queued: ", ["13: classes[1].max_queued: has no value (remove the key or give it a value)"]),
    "no_value_in_section": (
        "scheduling: {policy: gmp}",
        "scheduling:",
        ["14: scheduling: has no value (remove the key or give it a value)"],
    ),
    "negative_limit": ("max_queued: 50", "max_queued: -1", ["13: classes[1].max_queued: must be at least 0, not -1"]),
    "negative_seconds": ("  drain_s: 60", "  drain_s: -0.5", ["3: server.drain_s: must be at least 0, not -0.5"]),
    "no_wait_at_all": ("max_wait_s: 20", "max_wait_s: 0", ["12: classes[0].max_wait_s: must be greater than 0, not 0"]),
    "no_slots": ("    slots: 4", "    slots: 0", ["7: pools[0].slots: must be 'auto' or a whole number of at least 1"]),
    "odd_slots": ("    slots: 4", "    slots: many", ["7: pools[0].slots: must be 'auto' or a whole number of at least 1"]),
    "running_above_the_pool": (
        "max_queued: 50",
        "max_running: 1.5",
        ["13: classes[1].max_running: must be a whole number of at least 1, or a fraction of the pool's slots above 0.0, at most 1.0"],
    ),
    "share_below_a_basis_point": ("min_share: 0.4", "min_share: 0.00001", ["13: classes[1].min_share: must have at most 4 decimals"]),
    "share_above_all": ("min_share: 0.4", "min_share: 40", ["13: classes[1].min_share: must be at most 1, not 40"]),
    "weight_of_nothing": ("    class: paid", "    class: paid\n    weight: 0", ["18: tenants[0].weight: must be at least 0.01, not 0"]),
    "no_rate": (
        "    class: paid",
        "    class: paid\n    tokens_per_minute: 0",
        ["18: tenants[0].tokens_per_minute: must be greater than 0, not 0"],
    ),
    "no_burst": (
        "    class: paid",
        "    class: paid\n    tokens_per_minute:\n      rate: 5\n      burst: 0",
        ["20: tenants[0].tokens_per_minute.burst: must be at least 1, not 0"],
    ),
    "rate_as_text": (
        "    class: paid",
        "    class: paid\n    tokens_per_minute: 5k",
        ["18: tenants[0].tokens_per_minute: must be a number or a mapping {rate: …, burst: …}"],
    ),
    "no_hashes": (f'["{A}"]', "[]", ["18: tenants[0].key_hashes: must have at least 1 entry"]),
    "no_engines": (
        "      - {name: e1, kind: embedded}",
        "  - {name: other, models: [n], engines: []}",
        ["10: pools[1].engines: must have at least 1 entry"],
    ),
    "no_models": ("[m, {fast: m-engine}]", "[]", ["6: pools[0].models: must have at least 1 entry"]),
    "model_as_text": ("[m, {fast: m-engine}]", "m", ["6: pools[0].models: must be a list of model names or {alias: engine-name} mappings"]),
    "model_as_number": ("{fast: m-engine}", "{fast: 7}", ["6: pools[0].models[1].fast: must be text, not 7 (quote it)"]),
    "model_as_list": ("{fast: m-engine}", "[x]", ["6: pools[0].models[1]: must be a mapping, not a list"]),
    "unknown_kind": (
        "kind: openai",
        "kind: opnai",
        [f"9: pools[0].engines[0].kind: must be {KINDS}, not the text 'opnai' (did you mean 'openai'?)"],
    ),
    "address_without_host": ("127.0.0.1:8080", "':8080'", ["2: server.listen: must be HOST:PORT, such as 127.0.0.1:8080"]),
    "address_without_port": ("127.0.0.1:8080", "localhost", ["2: server.listen: must be HOST:PORT, such as 127.0.0.1:8080"]),
    "port_alone": ("127.0.0.1:8080", "8080", ['2: server.listen: must be HOST:PORT in quotes, such as "127.0.0.1:8080"']),
    "port_too_high": ("127.0.0.1:8080", "localhost:99999", ["2: server.listen: must have a port from 0 to 65535"]),
    "url_without_scheme": (
        "http://127.0.0.1:9",
        "127.0.0.1:9",
        ["9: pools[0].engines[0].url: must start with http:// or https://, or with dns+http:// or dns+https://"],
    ),
    "reserved_tenant": ("name: acme", "name: anonymous-7", ["16: tenants[0].name: is a name kept for callers without a key"]),
    "reserved_class": (
        "max_queued: 50}",
        "max_queued: 50}\n  - {name: none}",
        ["14: classes[2].name: is a name kept for requests refused before their class is known"],
    ),
    "tenant_of_two_lines": ("name: acme", 'name: "ac\\nme"', ["16: tenants[0].name: must be one line without control characters"]),
    "class_no_header_can_name": (
        "{name: paid, ",
        "{name: bezahlt für, ",
        ["12: classes[0].name: must be a name: …", "17: tenants[0].class: there is no class 'paid'…"],
    ),
    "no_pools": (None, "pools: []\nanonymous: {class: free}", ["1: pools: must have at least 1 entry"]),
    "no_classes": (
        None,
        "classes: []\nanonymous: {class: free}",
        ["1: classes: must have at least 1 entry", "2: anonymous.class: there is no class 'free'…"],
    ),
}


@pytest.mark.parametrize("name", CASES, ids=[f"fc_51_{name}" for name in CASES])
def test_fc_51_a_mistake_is_refused_with_a_pointer(name: str) -> None:
    """One mistake gives exactly its own faults: line, place, what is wrong and, where there is one, the cure."""
    check(CASES[name])
