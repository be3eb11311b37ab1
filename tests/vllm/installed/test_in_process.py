"""The plugin inside an engine that computes: a tiny model in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm import LLM, SamplingParams

from fairlane.core.request import Request
from fairlane.vllm_plugin import FairlaneScheduler
from scripts.tiny_model import write


@pytest.mark.timeout(400)  # importing and building an engine takes half a minute, and more on a busy machine
def test_an_engine_in_this_process_runs_in_our_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler is loaded by its name, every prompt is answered, urgent ones first, and the books balance."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    write(tmp_path)
    model = LLM(
        str(tmp_path),
        load_format="dummy",
        enforce_eager=True,
        max_num_seqs=1,
        max_model_len=512,
        kv_cache_memory_bytes=1 << 26,
        scheduler_cls="fairlane.vllm_plugin.FairlaneScheduler",
    )
    scheduler = model.llm_engine.engine_core.engine_core.scheduler
    assert isinstance(scheduler, FairlaneScheduler)
    order: list[int] = []
    start = scheduler.waiting.order.start

    def noted() -> Request:
        request: Request = start()
        order.append(request.rank)
        return request

    monkeypatch.setattr(scheduler.waiting.order, "start", noted)
    ranks = [3, 2, 3, 0, 1]
    limits = [
        SamplingParams(max_tokens=6, ignore_eos=True, extra_args={"fairlane_class": rank, "fairlane_tenant": f"t{number}"})
        for number, rank in enumerate(ranks)
    ]
    answers = model.generate(["a prompt"] * len(ranks), limits, use_tqdm=False)
    assert [len(answer.outputs[0].token_ids) for answer in answers] == [6] * len(ranks)
    assert order == [0, 1, 2, 3, 3]
    prompts = sum(len(answer.prompt_token_ids) - (answer.num_cached_tokens or 0) for answer in answers)
    assert scheduler.waiting.order.charged == prompts + 4 * 6 * len(ranks)
    assert not scheduler.waiting._entries
