"""FC-51. Keys: misspelt, at the wrong level, missing, or of a later version."""

import pytest

from tests.settings.spoil import A, B, Case, check

CASES: dict[str, Case] = {
    "misspelt_key": ("  drain_s: 60", "  drian_s: 60", ["3: server.drian_s: unknown key (did you mean 'drain_s'?)"]),
    "misspelt_section": ("anonymous:", "anonimous:", ["19: anonimous: unknown key (did you mean 'anonymous'?)"]),
    "misspelt_required_key": ("kind: embedded", "knid: embedded", ["10: pools[0].engines[1].knid: unknown key (did you mean 'kind'?)"]),
    "far_from_every_key": ("  drain_s: 60", "  colour: 60", ["3: server.colour: unknown key"]),
    "misspelt_and_elsewhere": ("  drain_s: 60", "  polcy: gmp", ["3: server.polcy: unknown key (did you mean 'scheduling.policy'?)"]),
    "wrong_level_section": ("  drain_s: 60", "  policy: gmp", ["3: server.policy: unknown key (belongs under 'scheduling')"]),
    "misspelt_file": (
        "scheduling: {policy: gmp}",
        "predictor: {state: s}",
        ["14: predictor.state: unknown key (did you mean 'state_file'?)"],
    ),
    "wrong_level_top": ("scheduling: {policy: gmp}", "policy: gmp", ["14: policy: unknown key (belongs under 'scheduling')"]),
    "wrong_level_up": ("  drain_s: 60", "  classes: []", ["3: server.classes: unknown key (belongs at the top of the file)"]),
    "wrong_level_many": (
        "    slots: 4",
        "    max_queued: 4",
        ["7: pools[0].max_queued: unknown key (belongs under 'backlog', 'classes[]', 'tenants[]' or 'anonymous')"],
    ),
    "wrong_level_down": (
        "    class: paid",
        "    class: paid\n    burst: 3",
        ["18: tenants[0].burst: unknown key (belongs under 'tenants[].requests_per_minute' or 'tenants[].tokens_per_minute')"],
    ),
    "merge_key": ("scheduling: {policy: gmp}", "scheduling: {<<: {policy: gmp}}", ["14: scheduling.<<: unknown key"]),
    "later_store": ("scheduling:", 'store: {url: "x"}\nscheduling:', ["14: store: not available in this version"]),
    "fast_lane_slots": (
        "    slots: 4",
        "    fast_lane: {slots: 1}",
        ["7: pools[0].fast_lane.slots: unknown key (belongs under 'pools[]' or 'pools[].engines[]')"],
    ),
    "fast_lane_kv": ("    slots: 4", "    fast_lane: {kv: 0.6}", ["7: pools[0].fast_lane.kv: must be at most 0.5, not 0.6"]),
    "later_fair_by_user": (
        "    class: paid",
        "    class: paid\n    fair_by_user: true",
        ["18: tenants[0].fair_by_user: not available in this version"],
    ),
    "unknown_policy": (
        "policy: gmp",
        "policy: strct",
        ["14: scheduling.policy: must be 'gmp', 'strict', 'weighted', 'fifo' or 'aging', not the text 'strct' (did you mean 'strict'?)"],
    ),
    "later_workers": ("  drain_s: 60", "  workers: 4", ["3: server.workers: must be 1: several workers are not available in this version"]),
    "missing_key": ("    class: paid\n", "", ["16: tenants[0].class: is required"]),
    "missing_hashes": (f'    key_hashes: ["{A}"]\n', "", ["16: tenants[0].key_hashes: is required"]),
    "burst_alone": (
        "    class: paid",
        "    class: paid\n    tokens_per_minute: {burst: 9}",
        ["18: tenants[0].tokens_per_minute.rate: is required"],
    ),
    "keys_without_a_tenant": (
        "{class: free}",
        f'{{class: free, key_hashes: ["{B}"]}}',
        ["19: anonymous.key_hashes: unknown key (belongs under 'tenants[]')"],
    ),
}


@pytest.mark.parametrize("name", CASES, ids=[f"fc_51_{name}" for name in CASES])
def test_fc_51_a_mistake_is_refused_with_a_pointer(name: str) -> None:
    """One mistake gives exactly its own faults: line, place, what is wrong and, where there is one, the cure."""
    check(CASES[name])
