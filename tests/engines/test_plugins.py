"""The table of names and what is behind each."""

import subprocess
import sys

import pytest

from fairlane.errors import SettingsError
from fairlane.plugins import ENGINE_ADAPTERS, engine_adapter


@pytest.mark.parametrize("kind", ENGINE_ADAPTERS)
def test_every_engine_kind_loads(kind: str) -> None:
    """Each name gives an adapter that has probes and reports an engine that was not reached as not healthy."""
    adapter = engine_adapter(kind)
    assert all(path.startswith("/") for path in adapter.probes)
    assert not adapter.read([(0, b"") for _ in adapter.probes]).healthy


def test_the_embedded_engine_is_read_as_llamacpp() -> None:
    """The embedded engine is the same server, so its adapter is the same."""
    assert engine_adapter("embedded").kind == "llamacpp"


def test_an_unknown_kind_names_the_known_ones() -> None:
    """A misspelt kind is an error of the settings that tells what there is."""
    with pytest.raises(SettingsError, match=r"unknown engine kind 'vlm'; known: embedded, llamacpp, openai, sglang, simulated, tgi, vllm"):
        engine_adapter("vlm")


def test_only_what_is_asked_for_is_imported() -> None:
    """A start pays for the modules it uses, not for every name in the table."""
    code = "import sys, fairlane.plugins as p; p.engine_adapter('openai'); print([m for m in sys.modules if 'fairlane.engines.' in m])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30).stdout
    assert sorted(eval(shown)) == ["fairlane.engines.adapter", "fairlane.engines.openai"]
