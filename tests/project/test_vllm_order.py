"""The benchmark on vLLM counts what it says: who was passed over, what an answer was, and settings that the gateway takes."""

import asyncio
import json
import math
from argparse import Namespace
from pathlib import Path

import pytest

from bench import engine
from bench.vllm_order import auto, order
from bench.vllm_order.calls import Answer, Ask, ask, prompt, usage
from bench.vllm_order.figures import figures, quantile
from bench.vllm_order.load import BATCH, REALTIME, Plan, Played
from bench.vllm_order.modes import CLASSES, MODES, SHARES, settings
from bench.vllm_order.starts import Passed, Start, logged, passed_over, recorded
from fairlane.gateway.calls.order import engine_id
from fairlane.settings import load, parse

COSTS = {REALTIME: 100.0, BATCH: 1000.0}


def start(cls: str, came_at: float, started_at: float) -> Start:
    return Start(cls, came_at, started_at, COSTS[cls])


def test_a_batch_start_while_a_realtime_request_waits_passes_it_over() -> None:
    """Only a start between arrival and start of the realtime request counts, and each such request once."""
    batch = [start(BATCH, 0, at) for at in (1.0, 4.0, 4.5, 9.0)]
    realtime = [start(REALTIME, 2.0, 3.0), start(REALTIME, 3.5, 5.0)]
    assert passed_over(batch + realtime, 0.1) == Passed(2, 1, 1)


def test_a_batch_start_that_was_owed_is_told_apart() -> None:
    """A share of a tenth is owed its next start when ten times the cost of its last one has started since, less one cost."""
    burst = [start(REALTIME, 0.6, 1 + i / 1000) for i in range(81)]
    waits = [start(REALTIME, 1.5, 3.0)]
    assert passed_over([start(BATCH, 0, 0.5), *burst, start(BATCH, 0, 2.0), *waits], 0.1) == Passed(82, 1, 0)
    assert passed_over([start(BATCH, 0, 0.5), *burst[1:], start(BATCH, 0, 2.0), *waits], 0.1) == Passed(81, 1, 1)


def test_what_is_simultaneous_within_the_clocks_is_not_passed_over() -> None:
    """A batch start a millisecond after the arrival may have been before it."""
    starts = [start(BATCH, 0, 2.001), start(REALTIME, 2.0, 3.0)]
    assert passed_over(starts, 0.1).passed == 1
    assert passed_over(starts, 0.1, 0.002).passed == 0


def test_starts_are_read_from_the_log_and_from_the_record(tmp_path: Path) -> None:
    """Only what started counts: of the log, lines of requests that an engine had; of the record, those of this run."""
    line = {"event": "request", "ts": "1970-01-01T00:00:10Z", "class": "batch", "engine": "vllm", "queue_ms": 500.0, "total_ms": 2000.0}
    lines = [{"event": "listening"}, line, line | {"engine": None}]
    (tmp_path / "log").write_text("".join(f"{json.dumps(one)}\n" for one in lines) + "not JSON\n")
    assert logged(tmp_path / "log", COSTS) == [Start(BATCH, 8.0, 8.5, 1000.0)]
    straight, through = "cmpl-a1-b0-0-0-ff", f"cmpl-{engine_id('a1-r7').decode()}-0-ff"
    (tmp_path / "starts").write_text(f"{straight} 1 2\n{through} 3 4\ncmpl-a11-r7-0-ff 5 6\n")
    assert recorded(tmp_path / "starts", "a1", COSTS) == [start(BATCH, 1, 2), start(REALTIME, 3, 4)]


@pytest.mark.parametrize("name", MODES)
def test_the_gateway_takes_the_settings(name: str) -> None:
    """Each mode's configuration is valid, with what part b sets besides."""
    told = {"server": {"listen": "127.0.0.1:0"}, **settings(MODES[name], 8000, 16, {"max_running": 6})}
    read = parse(json.dumps(told), "bench")
    assert [(one.kind, one.slots) for one in read.pools[0].engines] == [("vllm", 16)]
    assert read.classes[-1].max_running == 6
    assert {one.name: one.class_name for one in read.tenants} == {name: name for name in SHARES}
    assert read.pools[0].engines[0].scheduler_plugin == (name == "plugin")


def test_the_classes_are_the_default_ones() -> None:
    """But for the order inside batch, which the module explains; no class has an objective, so no place is kept for it."""
    read = parse(json.dumps({"classes": CLASSES, "anonymous": {"class": "batch"}}), "bench").classes
    usual = load(None).classes
    assert [one.model_copy(update={"short_first_s": 0}) for one in read] == [one.model_copy(update={"short_first_s": 0}) for one in usual]
    assert [one.short_first_s for one in read[:-1]] == [one.short_first_s for one in usual[:-1]]
    assert {one.name: one.min_share for one in read} == SHARES


def test_an_answer_has_its_tokens_and_the_time_of_its_first() -> None:
    """A stream from the mock engine is whole, with the usage that it tells; nobody there is an answer that never came."""

    async def both() -> None:
        server = await asyncio.get_running_loop().create_server(engine.Connection, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        answer = await ask(port, Ask("a-r0", REALTIME, 10, 3, streamed=True))
        assert (answer.whole, answer.tokens) == (True, 1)
        assert answer.first_at is not None
        assert answer.ended_at is not None
        assert answer.sent_at <= answer.first_at < answer.ended_at
        server.close()
        await server.wait_closed()
        missing = await ask(port, Ask("a-r1", REALTIME, 10, 3))
        assert (missing.whole, missing.ttft_s) == (False, None)

    asyncio.run(both())


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (b'{"usage": {"completion_tokens": 7}}', 7),
        (b'data: {"usage": null}\n\ndata: {"usage": {"completion_tokens": 7}}\n\ndata: [DONE]\n\n', 7),
        (b'data: {"usage": {"completion_tokens": 7}}\n\n', 0),
        (b'{"error": {"message": "full"}}', 0),
        (b"<html>", 0),
    ],
    ids=["document", "stream", "stream that broke off", "refusal", "no JSON"],
)
def test_usage_counts_only_in_a_whole_answer(body: bytes, tokens: int) -> None:
    """What broke off is no answer, whatever it told before."""
    assert usage(body).get("completion_tokens", 0) == tokens


def test_arrivals_are_the_same_for_the_same_seed() -> None:
    """Both runs of a pair get the same ones, about as many as the rate says, and other seeds others."""
    plan = Plan("a", 100, 5, rate=4, seed=3)
    assert plan.arrivals() == Plan("b", 100, 5, rate=4, seed=3).arrivals()
    assert plan.arrivals() != Plan("a", 100, 5, rate=4, seed=4).arrivals()
    assert 300 < len(plan.arrivals()) < 540
    assert Plan("a", 100, 5).arrivals() == []


def test_prompts_have_their_length_and_no_prefix_in_common() -> None:
    """One character is one token of the tiny model."""
    one, other = prompt("a1-r1", 64), prompt("a1-r12", 64)
    assert len(one) == len(other) == 64
    assert one[:7] != other[:7]


def test_quantiles_are_values_that_were_seen() -> None:
    """By nearest rank: of 100 values the 99th is their 0.99 quantile."""
    assert quantile(range(1, 101), 0.99) == 99
    assert quantile([5], 0.5) == 5
    assert math.isnan(quantile([], 0.5))


def test_an_answer_that_never_came_is_late_and_wrong() -> None:
    """A refused request cannot make the figures better."""

    async def refused() -> Played:
        answer = await ask(1, Ask("a-r0", REALTIME, 10, 3))
        return Played([answer], [answer])

    found = figures(Plan("a", 10, 1), asyncio.run(refused()), {})
    assert (found["ttft_p50_s"], found["wrong"]) == (math.inf, 1)


def test_what_was_computed_for_nobody_is_wasted() -> None:
    """Tokens of the engine that are in no answer, prompts included, as a part of all of its tokens."""
    answer = Answer(Ask("a-b0-0", BATCH, 64, 136), status=200, usage={"prompt_tokens": 64, "completion_tokens": 136, "total_tokens": 200})
    assert Played(answers=[answer, answer], all_tokens=500).wasted == pytest.approx(0.2)
    assert Played(answers=[answer], all_tokens=200).wasted == 0


def test_the_page_of_pairs_tells_each_ratio_one_way_round() -> None:
    """Slower through the gateway is below 1 in part a, and above 1 in part b."""

    def run(ttft_s: float) -> dict[str, float]:
        return {"realtime": 1, **dict.fromkeys(("ttft_p50_s", "ttft_p95_s", "ttft_p99_s"), ttft_s), "output_per_s": 900.0, "wrong": 0}

    def row(page: str, title: str) -> str:
        return next(line for line in page.splitlines() if title in line)

    a = order.page("a", "stamp", [{"direct": run(1.0), "fairlane": run(4.0)}], [900.0, 1100.0])
    assert row(a, "TTFT p99").split()[-2:] == ["0.25", "(0.25-0.25)"]
    assert row(a, "of the flood").split()[-2:] == ["0.9", "(0.9-0.9)"]
    b = order.page("b", "gateway", [{"alone": run(1.0), "fairlane": run(4.0)}], [900.0])
    assert row(b, "TTFT p99").split()[-2:] == ["4", "(4-4)"]


def test_the_page_of_slots_compares_with_the_best_fixed_number() -> None:
    """By medians: a single lucky round makes no number the best."""

    def runs(*goodput: float) -> list[dict[str, float]]:
        return [dict.fromkeys(auto.TITLES, 0.0) | {"goodput_per_s": one} for one in goodput]

    options = Namespace(blocks=60, rounds=3, ttft=10.0, tpot=0.02)
    page = auto.page(options, {"auto": runs(90, 80, 100), "4": runs(100, 101, 99), "8": runs(10, 20, 500)})
    assert page.endswith("auto has 0.90 of the goodput of 4 slots, the best fixed number")


def test_every_run_asks_for_the_same_mixture() -> None:
    """Prompts and chances of an end are the seed's; about seven in ten answers are short."""
    mixture = [auto.mixed("a-b0-0", seed) for seed in range(300)]
    assert mixture == [auto.mixed("a-b0-0", seed) for seed in range(300)]
    assert 180 < sum(one.stops == 5 for one in mixture) < 240
    assert {one.stops for one in mixture} == {1, 5}
