"""The plugin refuses a vLLM that it was not made for, and can be imported where there is none."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from fairlane import vllm_plugin
from fairlane.vllm_plugin import gate
from fairlane.vllm_plugin.asked import EngineRequest


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu"])
def test_the_tested_version_is_let_in(version: str) -> None:
    """Whichever build it is."""
    gate.demand_version(version)


@pytest.mark.parametrize("version", ["0.31.0", "0.32.1", "0.33.0", "0.32.0rc1", "dev"])
def test_another_version_is_refused(version: str) -> None:
    """The message names both versions."""
    with pytest.raises(gate.UnfitVllm, match=f"works in vLLM 0.32.0; this is vLLM {version}"):
        gate.demand_version(version)


def test_everything_that_is_missing_is_named() -> None:
    """One message tells all names, with whose they are."""
    scheduler = SimpleNamespace(waiting=[], schedule=None)
    with pytest.raises(gate.UnfitVllm, match=r"Scheduler\.running, Request\.max_tokens$"):
        gate.demand_names({"Scheduler": (scheduler, ["waiting", "running", "schedule"]), "Request": (object(), ["max_tokens"])})


def test_what_is_read_of_a_request_is_what_is_demanded() -> None:
    """No field is read that the start does not look for."""
    assert set(gate.REQUEST) == set(EngineRequest.__annotations__)


def test_a_policy_with_an_order_of_its_own_is_refused() -> None:
    """The message says which option helps."""
    gate.demand_policy("fcfs")
    with pytest.raises(gate.UnfitVllm, match="--scheduling-policy fcfs"):
        gate.demand_policy("priority")


def test_an_engine_needs_nothing_of_the_gateway() -> None:
    """In vLLM's process there are only vLLM's own packages: the plugin imports none of the gateway's."""
    foreign = ["httptools", "orjson", "prometheus_client", "starlette", "uvicorn", "uvloop"]
    script = (
        f"import sys\nfor name in {foreign}: sys.modules[name] = None\n"
        "from fairlane.vllm_plugin import configured, order, waiting, asked, gate\nassert configured.read({}).classes"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_the_package_has_nothing_else_to_offer() -> None:
    """A name that was misspelt on vLLM's command line is told as missing."""
    with pytest.raises(AttributeError, match="FairlaneSheduler"):
        getattr(vllm_plugin, "FairlaneSheduler")  # noqa: B009 - as vLLM looks for it
