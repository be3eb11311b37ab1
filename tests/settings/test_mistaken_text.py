"""FC-51. The text itself: YAML, environment references, and secrets that no fault may repeat."""

import pytest

from tests.settings.spoil import KINDS, SECRET, A, Case, check

CASES: dict[str, Case] = {
    "duplicate_key": (
        "  drain_s: 60",
        "  drain_s: 60\n  listen: 127.0.0.1:1",
        ["4: server.listen: the key appears twice, here and on line 2"],
    ),
    "duplicate_section": ("anonymous:", "server: {drain_s: 1}\nanonymous:", ["19: server: the key appears twice, here and on line 1"]),
    "unset_environment": (
        "${ENGINE_KEY}",
        "${ENGINE_KY}",
        ["9: pools[0].engines[0].api_key: the environment variable 'ENGINE_KY' is not set"],
    ),
    "empty_environment": ("${ENGINE_KEY}", "${EMPTY}", ["9: pools[0].engines[0].api_key: the environment variable 'EMPTY' is empty"]),
    "two_unset_in_one_text": (
        "${ENGINE_KEY}",
        "${ONE}-${TWO}",
        ["9: pools[0].engines[0].api_key: the environment variable 'ONE' is not set; the environment variable 'TWO' is not set"],
    ),
    "broken_reference": (
        "${ENGINE_KEY}",
        "${ENGINE_KEY",
        ["9: pools[0].engines[0].api_key: has a broken environment reference (write ${NAME})"],
    ),
    "shell_default_in_a_reference": (
        "${ENGINE_KEY}",
        "${KEY:-x}",
        ["9: pools[0].engines[0].api_key: has a broken environment reference (write ${NAME})"],
    ),
    "unset_in_a_number": (
        "max_queued: 50",
        'max_queued: "${LIMIT}"',
        ["13: classes[1].max_queued: the environment variable 'LIMIT' is not set"],
    ),
    "secret_in_a_number": (
        "max_queued: 50",
        'max_queued: "${ENGINE_KEY}"',
        ["13: classes[1].max_queued: must be a whole number, not the text '${ENGINE_KEY}'"],
    ),
    "secret_that_looks_like_a_number": (
        "  drain_s: 60",
        '  drain_s: "${PIN}"',
        ["3: server.drain_s: must be a number, not the text '${PIN}'"],
    ),
    "secret_as_a_class": (
        "    class: paid",
        "    class: ${ENGINE_KEY}",
        ["17: tenants[0].class: there is no class '${ENGINE_KEY}' (classes: paid, free)"],
    ),
    "secret_as_a_name": (
        "{name: free, ",
        '{name: "${ENGINE_KEY}", ',
        ["19: anonymous.class: there is no class 'free' (classes: paid)"],
    ),
    "secret_as_a_kind": (
        "kind: embedded",
        'kind: "${ENGINE_KEY}"',
        [f"10: pools[0].engines[1].kind: must be {KINDS}, not the text '${{ENGINE_KEY}}'"],
    ),
    "url_with_password": (
        "http://127.0.0.1:9",
        f"http://user:{SECRET}@127.0.0.1:9",
        ["9: pools[0].engines[0].url: must not have a user name or password; a key belongs under api_key"],
    ),
    "url_with_query": (
        "http://127.0.0.1:9",
        f"http://127.0.0.1:9/?key={SECRET}",
        ["9: pools[0].engines[0].url: must not have a query or a fragment; a key belongs under api_key"],
    ),
    "file_name_with_nul": (
        "scheduling: {policy: gmp}",
        'predictor: {state_file: "a\\0b"}',
        ["14: predictor.state_file: must not have control characters"],
    ),
    "key_for_hash": (
        f'["{A}"]',
        f"[{SECRET}]",
        ["18: tenants[0].key_hashes[0]: must be a hash, 'sha256:' and 64 hex digits, never the key itself (run 'fairlane hash-key')"],
    ),
    "bare_hash": (
        f'["{A}"]',
        f'["{"a" * 64}"]',
        ["18: tenants[0].key_hashes[0]: must be a hash, 'sha256:' and 64 hex digits, never the key itself (run 'fairlane hash-key')"],
    ),
    "key_for_list_of_hashes": (f'["{A}"]', SECRET, ["18: tenants[0].key_hashes: must be a list, not a text"]),
    "api_key_as_number": ('"${ENGINE_KEY}"', "12345", ["9: pools[0].engines[0].api_key: must be text, not a number (quote it)"]),
    "api_key_in_braces": (
        '"${ENGINE_KEY}"',
        f"{{{SECRET}}}",
        ["9: pools[0].engines[0].api_key.…: has no value…", "9: pools[0].engines[0].api_key: must be text, not a mapping"],
    ),
    "api_key_with_line_end": (
        '"${ENGINE_KEY}"',
        '"${ENGINE_KEY}\\n"',
        ["9: pools[0].engines[0].api_key: has characters that an HTTP header cannot carry, such as a space or a line end"],
    ),
    "not_a_mapping": (None, "# a list\n- a", ["2: must be a mapping of sections, not a list"]),
    "bare_text": (None, SECRET, ["1: must be a mapping of sections, not a text"]),
    "yaml_open_bracket": ("[m, {fast: m-engine}]", "[m, {fast: m-engine}", ["7: not valid YAML: …"]),
    "yaml_tab": ("  drain_s: 60", "\tdrain_s: 60", ["3: not valid YAML: …"]),
    "yaml_two_documents": ("scheduling:", "---\nscheduling:", ["14: not valid YAML: …"]),
    "yaml_key_of_two_lines": ("  drain_s: 60", '  "a\\nb": 60', ["3: server.'a\\nb': unknown key"]),
    "yaml_control_character": ("  drain_s: 60", "  drain_s: \x01", ["3: not valid YAML: a character that YAML does not allow"]),
    "yaml_unknown_alias": (
        '"${ENGINE_KEY}"',
        f"*{SECRET}",
        ["9: not valid YAML: an alias (*) without its anchor (&); quote a text that begins with '*'"],
    ),
    "yaml_reference_in_braces": (
        '"${ENGINE_KEY}"',
        "${ENGINE_KEY}",
        ['9: not valid YAML: … (inside braces a reference needs quotes: "${NAME}")'],
    ),
    "yaml_tag": (
        "    class: paid",
        "    class: !!python/name:os.system paid",
        ["17: tenants[0].class: has a tag (!) or a number that is not understood"],
    ),
    "yaml_key_of_a_list": ("  drain_s: 60", "  ? [drain_s]\n  : 60", ["3: server: a key must be a plain text"]),
    "yaml_endless_alias": (
        "scheduling: {policy: gmp}",
        "scheduling: &x {policy: [*x, *x]}",
        ["14: nested deeper or holding more values than any configuration"],
    ),
    "yaml_deep": ("policy: gmp", "policy: " + "[" * 5000 + "]" * 5000, ["…: not valid YAML: …"]),
}


@pytest.mark.parametrize("name", CASES, ids=[f"fc_51_{name}" for name in CASES])
def test_fc_51_a_mistake_is_refused_with_a_pointer(name: str) -> None:
    """One mistake gives exactly its own faults: line, place, what is wrong and, where there is one, the cure."""
    check(CASES[name])
