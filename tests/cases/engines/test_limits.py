"""How many requests an engine gets is found by the gateway itself, and shown."""

import json

from tests.caller import chat, finish
from tests.harness import Start, engine, settings
from tests.meters import until
from tests.stub import Plan, Stub


def test_an_engine_that_lets_requests_wait_gets_fewer(stub: Stub, start: Start) -> None:
    """Of the 16 that it is given at first four run there: it gets six, and an operator sees how many and why."""
    stub.pages["/metrics"] = b"vllm:num_requests_running 4\nvllm:num_requests_waiting 9\n"
    gateway = start(settings([{**engine(stub, 1, kind="vllm"), "slots": "auto"}]))
    stub.plan = Plan(held=True)
    calls = [gateway.open(chat()) for _ in range(20)]
    until(lambda: gateway.metric("fairlane_engine_slots", engine="e0") == 6, "it was cut", 8)
    shown = {move: gateway.metric("fairlane_engine_limit_move", engine="e0", move=move) for move in ("waiting", "start", "demand")}
    assert shown == {"waiting": 1, "start": 0, "demand": 0}
    assert gateway.metric("fairlane_engine_kv_limit_ratio", engine="e0") == 1
    assert gateway.metric("fairlane_engine_heeds_priority", engine="e0", heeds="unknown") == 1
    (row,) = json.loads(gateway.admin("/admin/state")[1])["engines"]
    assert (row["slots"], row["limit_move"], row["kv_limit_ratio"]) == (6, "waiting", 1.0)
    stub.plan = Plan()
    stub.release_all()
    assert [answer.status for answer in finish(calls)] == [200] * 20
    until(lambda: '"why":"waiting"' in gateway.stderr(), "the log says why")
