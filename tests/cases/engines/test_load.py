"""What an engine tells of its load: shown to operators, and used as far as it says what fits."""

import json

import pytest

from tests.caller import chat, finish
from tests.engines.record import PAGES
from tests.harness import Gateway, Start, engine, settings
from tests.meters import until
from tests.stub import Plan, Stub

METRICS = {
    "vllm": ("vllm-0.32.0-metrics.txt", 2, 3, 0.004887585532746819, 0),
    "sglang": ("sglang-0.5.23-written-from-its-documentation-metrics.txt", 12, 2, 0.28, 3),
    "tgi": ("tgi-3-written-from-its-documentation-metrics.txt", 4, 7, 0.0, 0),
}


@pytest.mark.parametrize("kind", METRICS)
def test_an_engines_load_is_shown(stub: Stub, start: Start, kind: str) -> None:
    """Metrics and state show what the engine told last and whether it still does; without its page it serves all the same."""
    name, running, waiting, kv_ratio, preemptions = METRICS[kind]
    stub.pages["/metrics"] = (PAGES / name).read_bytes()
    gateway = start(settings([engine(stub, 2, kind=kind)]))
    until(lambda: gateway.metric("fairlane_engine_metrics_up", engine="e0") == 1, "the load was told")
    del stub.pages["/metrics"]
    until(lambda: gateway.metric("fairlane_engine_metrics_up", engine="e0") == 0, "it is told no more")
    assert gateway.metric("fairlane_engine_told_running_requests", engine="e0") == running
    assert gateway.metric("fairlane_engine_told_waiting_requests", engine="e0") == waiting
    assert gateway.metric("fairlane_engine_kv_ratio", engine="e0") == kv_ratio
    assert gateway.metric("fairlane_engine_preemptions_total", engine="e0") == preemptions
    (row,) = json.loads(gateway.admin("/admin/state")[1])["engines"]
    assert (row["up"], row["measured"], row["told_running"], row["told_waiting"]) == (True, False, running, waiting)
    assert gateway.post(chat()).status == 200
    until(lambda: bool(_warnings(gateway)), "that is logged")
    (warning,) = _warnings(gateway)
    assert '"engine":"e0"' in warning


def _warnings(gateway: Gateway) -> list[str]:
    return [line for line in gateway.stderr().splitlines() if '"level":"warning"' in line and "/metrics: HTTP 404" in line]


def test_requests_wait_for_the_room_that_the_engine_reports(stub: Stub, start: Start) -> None:
    """Two requests that do not fit into the reported KV cache together run one after the other, though there are slots."""
    stub.pages["/metrics"] = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="20"} 1.0\n'
    gateway = start(settings([engine(stub, 4, kind="vllm")]))
    stub.plan = Plan(held=True)
    calls = [gateway.open(chat(max_tokens=250)) for _ in range(2)]
    gateway.wait_for(running=1, waiting=1)
    stub.plan = Plan()
    stub.release_all()
    assert [answer.status for answer in finish(calls)] == [200, 200]
