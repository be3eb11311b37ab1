"""Whatever a file holds, it gives settings or faults: never another exception, never a secret."""

import copy
import json
import re
from typing import Any

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairlane.errors import SettingsError
from fairlane.settings import Settings, class_specs, parse, pool_specs, tenants
from fairlane.settings.keys import Keyring
from fairlane.settings.reference import EXAMPLE

SECRET = "sk-not-to-be-seen"
ENVIRON = {"ENGINE_KEY": SECRET}
GOOD: dict[str, Any] = yaml.safe_load(EXAMPLE)

Step = str | int

WORDS = st.sampled_from(
    [
        "",
        "*",
        "auto",
        "10s",
        "acme",
        "free",
        "paid",
        "${ENGINE_KEY}",
        "${NO}",
        "http://h:1",
        "h:1",
        "embedded",
        "vllm",
        "sha256:00",
        "name",
        "none",
    ]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=4), inner, max_size=3), max_leaves=6
)


def places(node: object, here: tuple[Step, ...] = ()) -> list[tuple[Step, ...]]:
    """Every place of a tree."""
    steps: list[Step] = list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
    return [here, *(place for step in steps for place in places(node[step], (*here, step)))]  # type: ignore[index]


def spoilt(changes: list[tuple[tuple[Step, ...], Any]]) -> Any:  # noqa: ANN401 (JSON)
    """The example with other values at some places; a place that an earlier change took away is left alone."""
    tree: Any = {"": copy.deepcopy(GOOD)}
    for place, value in changes:
        node = tree
        steps: list[Step] = ["", *place]
        try:
            for step in steps[:-1]:
                node = node[step]
            node[steps[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue
    return tree[""]


def outcome(text: str) -> Settings | list[str]:
    """Settings or faults, which name the file and a line and keep the secret."""
    try:
        return parse(text, "f.yaml", ENVIRON)
    except SettingsError as error:
        problems = error.problems
    assert problems
    assert [one for one in problems if not re.match(r"f\.yaml:\d+: \S", one)] == []
    assert [one for one in problems if SECRET in one or "Input should" in one] == [], "a secret, or pydantic's words"
    return problems


@given(st.lists(st.tuples(st.sampled_from(places(GOOD)), VALUES), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_any_change_of_the_example_gives_settings_or_faults(changes: list[tuple[tuple[Step, ...], Any]]) -> None:
    """Settings that come out can be used whole: every value of the core can be made of them."""
    found = outcome(json.dumps(spoilt(changes), indent=1, ensure_ascii=True))
    if isinstance(found, Settings):
        assert [len(pool.classes) for pool in pool_specs(found)] == [len(class_specs(found, 3))] * len(found.pools)
        assert len(tenants(found)) == len(found.tenants)
        assert Keyring(found).tenant_of("") is None


@given(st.text(alphabet="ab:-[]{}#&*!|>'\"%@`,?~ \t\n\x00\ufeff\ud800é${}0.", max_size=40))
@example("\ud800")
@example("a: \x85b: c")
@settings(max_examples=300, deadline=None)
def test_any_text_gives_settings_or_faults(text: str) -> None:
    """What is no YAML at all is refused as politely."""
    outcome(text)


def test_one_added_fault_is_one_added_line() -> None:
    """The same spoilt place gives the same fault, whatever else is wrong: faults hide none of the others."""
    alone = outcome(json.dumps(spoilt([(("classes", 1, "max_queued"), -1)]), indent=1))
    both = outcome(json.dumps(spoilt([(("classes", 1, "max_queued"), -1), (("server", "listen"), 5)]), indent=1))
    assert isinstance(alone, list)
    assert isinstance(both, list)
    assert len(both) == 2
    assert alone[0] in both
