"""FC-51. What one value alone does not show: references, repetitions, contradictions."""

import pytest

from tests.settings.spoil import A, B, Case, check

CASES: dict[str, Case] = {
    "unknown_class": ("    class: paid", "    class: payed", ["17: tenants[0].class: there is no class 'payed' (did you mean 'paid'?)"]),
    "unknown_class_far": ("    class: paid", "    class: gold", ["17: tenants[0].class: there is no class 'gold' (classes: paid, free)"]),
    "unknown_best_class": (
        "{class: free}",
        "{class: free, best_class: pad}",
        ["19: anonymous.best_class: there is no class 'pad' (did you mean 'paid'?)"],
    ),
    "best_class_below": (
        "    class: paid",
        "    class: paid\n    best_class: free",
        ["18: tenants[0].best_class: is less urgent than the caller's own class, so nothing could use it"],
    ),
    "unknown_model": (
        "    class: paid",
        "    class: paid\n    models: [fsat]",
        ["18: tenants[0].models[0]: no pool has a model 'fsat' (did you mean 'fast'?)"],
    ),
    "every_model_and_more": (
        "    class: paid",
        '    class: paid\n    models: [m, "*"]',
        ["18: tenants[0].models[1]: '*' is every model, so nothing can stand beside it"],
    ),
    "tenant_twice": (
        "anonymous:",
        f'  - {{name: acme, class: free, key_hashes: ["{B}"]}}\nanonymous:',
        ["19: tenants[1].name: the tenant name 'acme' appears twice, first at tenants[0].name (line 16)"],
    ),
    "hash_twice": (
        "anonymous:",
        f'  - {{name: other, class: free, key_hashes: ["{A.upper().replace("SHA", "sha")}"]}}\nanonymous:',
        ["19: tenants[1].key_hashes[0]: this hash of a key appears twice, first at tenants[0].key_hashes[0] (line 18)"],
    ),
    "class_twice": (
        "name: free, ",
        "name: paid, ",
        [
            "13: classes[1].name: the class name 'paid' appears twice, first at classes[0].name (line 12)",
            "19: anonymous.class: there is no class 'free'…",
        ],
    ),
    "engine_twice": (
        "name: e1",
        "name: e0",
        ["10: pools[0].engines[1].name: the engine name 'e0' appears twice, first at pools[0].engines[0].name (line 9)"],
    ),
    "tpot_of_fixed_slots": (
        "    engines:",
        "    tpot_slo_s: 0.1\n    engines:",
        ["8: pools[0].tpot_slo_s: could not be kept: no engine of the pool has slots that Fairlane finds itself; leave it out, or slots"],
    ),
    "pool_twice": (
        "classes:",
        "  - {name: main, models: [n], engines: [{name: e2, kind: embedded}]}\nclasses:",
        ["11: pools[1].name: the pool name 'main' appears twice, first at pools[0].name (line 5)"],
    ),
    "model_in_two_pools": (
        "classes:",
        "  - {name: other, models: [n, fast], engines: [{name: e2, kind: embedded}]}\nclasses:",
        ["11: pools[1].models[1]: the model 'fast' appears twice, first at pools[0].models[1].fast (line 6)"],
    ),
    "model_twice_in_a_pool": (
        "[m, {fast",
        "[fast, {fast",
        ["6: pools[0].models[1].fast: the model 'fast' appears twice, first at pools[0].models[0] (line 6)"],
    ),
    "embedded_with_url": (
        "kind: openai",
        "kind: embedded",
        [
            "9: pools[0].engines[0].url: an engine of kind 'embedded' has no url",
            "9: pools[0].engines[0].api_key: an engine of kind 'embedded' has no api_key",
        ],
    ),
    "simulated_without_url": ("kind: embedded", "kind: simulated", ["10: pools[0].engines[1].url: is required for kind 'simulated'"]),
    "openai_without_url": ("kind: embedded", "kind: openai", ["10: pools[0].engines[1].url: is required for kind 'openai'"]),
    "model_file_of_a_remote_engine": (
        "kind: openai",
        "kind: openai, model_file: m.gguf",
        ["9: pools[0].engines[0].model_file: an engine of kind 'openai' has no model_file"],
    ),
    "settings_of_other_kinds": (
        "kind: openai",
        "kind: openai, priority_step_s: 1, scheduler_plugin: true",
        [
            "9: pools[0].engines[0].priority_step_s: an engine of kind 'openai' has no priority_step_s",
            "9: pools[0].engines[0].scheduler_plugin: an engine of kind 'openai' has no scheduler_plugin",
        ],
    ),
    "a_plugin_of_sglang": (
        "kind: openai",
        "kind: sglang, priority_step_s: 0, scheduler_plugin: true",
        ["9: pools[0].engines[0].scheduler_plugin: an engine of kind 'sglang' has no scheduler_plugin"],
    ),
    "a_lookup_of_nothing": (
        "kind: openai",
        "kind: openai, lookup_s: 1",
        ["9: pools[0].engines[0].lookup_s: is only for a url that begins with dns+, whose name is looked up"],
    ),
    "a_lookup_of_an_embedded_engine": (
        "kind: embedded",
        "kind: embedded, lookup_s: 1",
        ["10: pools[0].engines[1].lookup_s: an engine of kind 'embedded' has no lookup_s"],
    ),
    "slo_beyond_the_wait": (
        "max_wait_s: 20",
        "max_wait_s: 20, ttft_slo_s: 21",
        ["12: classes[0].ttft_slo_s: is longer than max_wait_s (20), so it could never hold"],
    ),
    "slo_beyond_the_default_wait": (
        "max_queued: 50",
        "ttft_slo_s: 61",
        ["13: classes[1].ttft_slo_s: is longer than max_wait_s (60), so it could never hold"],
    ),
    "yields_of_a_class_above_the_last": (
        "max_wait_s: 20",
        "max_wait_s: 20, yield_waste: 0.1",
        ["12: classes[0].yield_waste: is only for the last of several classes, which gives its places to all others"],
    ),
    "yields_of_an_only_class": (
        None,
        "classes: [{name: gold, yield_waste: 0.1}]\nanonymous: {class: gold}",
        ["1: classes[0].yield_waste: is only for the last of several classes, which gives its places to all others"],
    ),
    "yields_where_shares_are_weights": (
        "max_queued: 50}\nscheduling: {policy: gmp}",
        "max_queued: 50, yield_waste: 0.1}\nscheduling: {policy: weighted}",
        ["13: classes[1].yield_waste: is only for the policies 'gmp' and 'strict': others would give the place back"],
    ),
    "retry_least_above_greatest": (
        "max_wait_s: 20",
        "max_wait_s: 20, retry_after_min_s: 50",
        ["12: classes[0].retry_after_min_s: the least Retry-After (50) is above the greatest (30)"],
    ),
    "retry_greatest_below_least": (
        "max_queued: 50",
        "retry_after_max_s: 1",
        ["13: classes[1].retry_after_max_s: the least Retry-After (2) is above the greatest (1)"],
    ),
    "one_address_for_both": (
        "  drain_s: 60",
        "  admin_listen: 127.0.0.1:8080",
        ["3: server.admin_listen: clients and admin pages cannot share one address"],
    ),
    "default_address_taken": ("127.0.0.1:8080", "127.0.0.1:8081", ["2: server.listen: clients and admin pages cannot share one address"]),
    "shares_above_all": (
        "min_share: 0.4",
        "min_share: 0.4001",
        ["13: classes[1].min_share: the shares up to here make 1.0001; all classes together may have at most 1"],
    ),
    "nobody_may_call_own_classes": (
        None,
        "classes: [{name: gold}, {name: silver}]",
        ["1: nobody could call: there are no tenants and no anonymous callers (add 'anonymous: {class: silver}')"],
    ),
    "nobody_may_call": (
        None,
        "server: {drain_s: 60}",
        ["1: nobody could call: there are no tenants and no anonymous callers (add 'anonymous: {class: free}')"],
    ),
}


@pytest.mark.parametrize("name", CASES, ids=[f"fc_51_{name}" for name in CASES])
def test_fc_51_a_mistake_is_refused_with_a_pointer(name: str) -> None:
    """One mistake gives exactly its own faults: line, place, what is wrong and, where there is one, the cure."""
    check(CASES[name])
