"""The simulator's engine does what vLLM's own scheduler did; `docs/simulator-vllm.md` tells how that was written down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.vllm_scheduler.cases import RECORDED
from bench.vllm_scheduler.play import Sent, Served, play
from fairlane.sim.engine.model import EngineModel


@pytest.mark.parametrize("name", RECORDED)
def test_our_engine_repeats_what_vllm_did(name: str) -> None:
    """First token, end and preemptions of every request are those of vLLM, to the picosecond, where KV is scarce."""
    recorded = json.loads(Path(__file__).with_name(f"{name}.json").read_text(encoding="utf-8"))
    model = EngineModel(**recorded["model"])
    assert model == RECORDED[name].model
    sent = [Sent(*row[:3]) for row in recorded["requests"]]
    vllm = [Served(*row[3:]) for row in recorded["requests"]]
    assert sum(served.preemptions for served in vllm) > 20
    assert play(model, sent) == vllm
