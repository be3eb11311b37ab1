"""What a request asks for, what it gets where it asks for nothing or for nonsense, and what the environment says of classes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlane.errors import SettingsError
from fairlane.settings import class_specs, load
from fairlane.vllm_plugin import configured
from fairlane.vllm_plugin.asked import NAMELESS, Asked
from tests.core.world import FOUR
from tests.vllm_plugin.stand_in import FakeRequest, Params, asking


def read(request: FakeRequest, **environ: str) -> tuple[int, str, int, int, float]:
    """Rank, tenant, cost, predicted output and key as the plugin sees them."""
    seen = Asked(configured.read(environ)).read(request)
    return seen.rank, seen.tenant.name, seen.cost, seen.output_tokens, seen.key


def test_what_the_gateway_sends_is_taken() -> None:
    """Rank, tenant, cost, predicted output and key are those of the request."""
    assert read(asking(1, "acme", cost=150, output=12, key=17)) == (1, "acme", 150, 12, 17.0)


@pytest.mark.parametrize("params", [None, Params(None), Params({}), Params({"kv_transfer_params": {}})])
def test_a_request_that_says_nothing_is_in_the_last_class(params: Params | None) -> None:
    """It belongs to the tenant without a name, costs what it may become, and is keyed by its arrival, later the more it costs."""
    assert read(FakeRequest(100, 25, params, arrival_time=50.0)) == (3, NAMELESS, 200, 25, 50.2)


@pytest.mark.parametrize(
    "nonsense",
    [
        {"fairlane_class": -1, "fairlane_tenant": 7, "fairlane_cost": 0, "fairlane_key": float("nan"), "fairlane_output": -5},
        {"fairlane_class": 4, "fairlane_tenant": "x" * 257, "fairlane_cost": -9, "fairlane_key": float("-inf"), "fairlane_output": 1.5},
        {"fairlane_class": "0", "fairlane_tenant": ["a"], "fairlane_cost": "1", "fairlane_key": "1", "fairlane_output": "1"},
        {"fairlane_class": True, "fairlane_cost": True, "fairlane_key": True, "fairlane_output": False},
        {"fairlane_class": 0.0, "fairlane_tenant": None, "fairlane_cost": 3.0, "fairlane_key": 10**400, "fairlane_output": [1]},
    ],
)
def test_nonsense_counts_as_not_said(nonsense: dict[str, object]) -> None:
    """Every field that is of another type or out of bounds is as if it were missing."""
    assert read(FakeRequest(100, 25, Params(nonsense), arrival_time=50.0)) == (3, NAMELESS, 200, 25, 50.2)


def test_a_request_cannot_cost_more_than_it_may_become() -> None:
    """A cost or an output beyond the request's own cap is cut to it."""
    assert read(asking(0, cost=10**30, output=10**30, key=1.0))[2:4] == (200, 25)


def test_a_request_costs_something() -> None:
    """A prompt of no tokens that produces none is charged one unit, so that corrections can be in proportion."""
    assert read(asking(0, num_prompt_tokens=0, max_tokens=0))[2] == 1


@pytest.mark.parametrize(("priority", "rank"), [(-3, 0), (0, 0), (2, 2), (99, 3)])
def test_a_priority_is_a_rank_where_that_is_wanted(priority: int, rank: int) -> None:
    """Only where it is configured, cut to the classes there are, and not where the gateway has said a class."""
    request = FakeRequest(priority=priority)
    assert read(request, FAIRLANE_CLASS_FROM="priority")[0] == rank
    assert read(request)[0] == 3
    assert read(asking(1, priority=priority), FAIRLANE_CLASS_FROM="priority")[0] == 1


def test_classes_are_those_of_a_gateway_without_a_configuration() -> None:
    """Names, shares and short-first bounds are the defaults of the settings, and tenants weigh the same."""
    told = configured.read({})
    assert told.classes == class_specs(load(None), 0)
    assert [(c.name, c.min_share) for c in told.classes] == [(c.name, c.min_share) for c in FOUR]
    assert told.tenants == {}


def test_classes_and_tenants_come_from_a_configuration(tmp_path: Path) -> None:
    """A gateway's own file serves: its classes without limits, its weights and what a token costs."""
    path = tmp_path / "fairlane.yaml"
    key = "{name: acme, class: slow, weight: 3, max_running: 2, key_hashes: ['sha256:" + 64 * "0" + "']}"
    path.write_text(
        "classes:\n  - {name: fast, min_share: 0.5}\n  - {name: slow, max_running: 1, max_queued: 1}\n"
        f"tenants:\n  - {key}\nscheduling: {{policy: strict, input_weight: 2, output_weight: 10}}\n"
    )
    told = configured.read({"FAIRLANE_CLASSES": str(path)})
    assert [(c.name, c.rank, c.min_share, c.max_running) for c in told.classes] == [("fast", 0, 5000, None), ("slow", 1, 0, None)]
    assert (told.tenants["acme"].weight, told.tenants["acme"].max_running) == (3, None)
    assert read(asking(0, "acme", key=1.0), FAIRLANE_CLASSES=str(path))[2] == 450
    assert type(told.policy.classes).__name__ == "Strict"


def test_classes_come_as_a_list() -> None:
    """Where there is no file the list itself does."""
    classes = json.dumps([{"name": "one", "min_share": 0.25}, {"name": "two"}])
    assert [(c.name, c.min_share) for c in configured.read({"FAIRLANE_CLASSES": classes}).classes] == [("one", 2500), ("two", 0)]


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("FAIRLANE_CLASSES", "/nowhere/fairlane.yaml", "/nowhere/fairlane.yaml: cannot be read"),
        ("FAIRLANE_CLASSES", "[", "FAIRLANE_CLASSES: is no list of classes"),
        ("FAIRLANE_CLASSES", "[]", "FAIRLANE_CLASSES: is no list of classes"),
        ("FAIRLANE_CLASSES", "[7]", "FAIRLANE_CLASSES: is no list of classes"),
        ("FAIRLANE_CLASSES", '[{"name": "a", "min_share": 2}]', "min_share"),
        ("FAIRLANE_CLASS_FROM", "weather", "FAIRLANE_CLASS_FROM: must be"),
    ],
)
def test_a_wrong_environment_stops_the_start(name: str, value: str, fault: str) -> None:
    """Classes that cannot be read are no reason to run with others."""
    with pytest.raises(SettingsError, match=fault):
        configured.read({name: value})
