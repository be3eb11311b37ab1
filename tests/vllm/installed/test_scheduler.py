"""The plugin inside vLLM's own scheduler: order, shares, preemption, aborts, and books that balance."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations

import pytest
import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from fairlane.core.values import BASIS_POINTS
from fairlane.errors import SettingsError
from fairlane.sim.engine.model import EngineModel
from fairlane.vllm_plugin import FairlaneScheduler, gate
from tests.core.world import FOUR
from tests.vllm.installed.driver import Driver

ROOMY = EngineModel(kv_tokens=320_000, whole_prompts=True)


def sized(running_max: int, kv_tokens: int = 320_000) -> EngineModel:
    """An engine with so many places."""
    return EngineModel(kv_tokens=kv_tokens, whole_prompts=True, running_max=running_max)


def assert_empty(driver: Driver) -> None:
    """Nothing waits, runs or is on the books, and what was charged is what was used."""
    waiting = driver.scheduler.waiting
    assert driver.scheduler.get_request_counts() == (0, 0)
    assert (list(waiting), waiting._entries, waiting._waiting, driver.scheduler.requests) == ([], {}, {}, {})
    assert all(not queue.running and not queue.queued and not queue.cost for queue in waiting.order.queues)
    assert waiting.order.charged == waiting.order.classes.inner.total


def test_classes_and_keys_decide_who_is_admitted() -> None:
    """With one place: the most urgent class, then those that are owed by that, inside a tenant by key; never by arrival."""
    driver = Driver(sized(1))
    driver.add("running", 10, 3, rank=3)
    driver.step()
    for name, rank, key in (("batch", 3, 1.0), ("free", 2, 1.0), ("late", 0, 9.0), ("early", 0, 2.0), ("paid", 1, 1.0)):
        driver.add(name, 10, 3, rank=rank, key=key)
    driver.drain()
    assert driver.ended == ["running", "early", "paid", "free", "late", "batch"]
    assert_empty(driver)


def test_classes_get_their_shares_of_two_thousand_requests() -> None:
    """With all classes backlogged none falls short by more than two of the largest charges, and the first gets what is left."""
    driver, draw, depth = Driver(sized(32)), random.Random(1), 32
    ran: Counter[int] = Counter()
    waits: Counter[tuple[int, str]] = Counter()
    classes: dict[str, tuple[int, str]] = {}

    def refill() -> None:
        for rank in range(4):
            for tenant in "abc":
                while waits[rank, tenant] < 3:
                    name = f"r{len(classes)}"
                    classes[name] = rank, tenant
                    waits[rank, tenant] += 1
                    output = draw.randint(1, 100)
                    foretold = round(output * draw.choice((1 / 3, 0.5, 1, 2, 3))) or 1
                    prompt = draw.randint(1, 400)
                    driver.add(name, prompt, output, rank=rank, tenant=tenant, cost=prompt + 4 * foretold)

    admitted = 0
    while admitted < 2000:
        refill()
        for name in driver.step().admitted:
            admitted += 1
            waits[classes[name]] -= 1
            request = driver.requests[name]
            ran[classes[name][0]] += request.num_prompt_tokens + 4 * request.max_tokens
    total, largest = sum(ran.values()), 400 + 4 * 300
    for c in FOUR:
        assert ran[c.rank] >= c.min_share / BASIS_POINTS * total - 2 * largest
    assert ran[0] >= 0.65 * total - (depth + 2) * largest
    driver.scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
    assert not driver.scheduler.waiting._entries


def test_tenants_of_a_class_share_alike() -> None:
    """Tenants whose requests are one, three and nine times as large get the same, within four of the largest charges."""
    driver, sizes = Driver(sized(16)), {"a": 1, "b": 3, "c": 9}
    ran: Counter[str] = Counter()
    for number in range(1500):
        for tenant, size in sizes.items():
            if number % size == 0:
                driver.add(f"{tenant}{number}", 20 * size, 10 * size, rank=1, tenant=tenant)
    while min(ran.values(), default=0) < 20_000:
        for name in driver.step().admitted:
            request = driver.requests[name]
            ran[name[0]] += request.num_prompt_tokens + 4 * request.max_tokens
    assert max(abs(ran[a] - ran[b]) for a, b in combinations(sizes, 2)) <= 4 * 9 * 60


def test_preempted_requests_come_back_first_and_pay_once() -> None:
    """Where KV is scarce, nothing new is admitted before all that was preempted runs again, and each pays what it used."""
    driver, draw = Driver(sized(64, kv_tokens=6_000)), random.Random(2)
    for number in range(300):
        driver.add(f"r{number}", draw.randint(10, 200), draw.randint(50, 400), rank=draw.randrange(4), cost=100)
    out: set[str] = set()
    preemptions = 0
    while driver.scheduler.has_unfinished_requests():
        step = driver.step()
        preemptions += len(step.preempted)
        out = (out | step.preempted) - set(step.resumed)
        assert not (out and step.admitted)
    assert preemptions > 20
    assert driver.scheduler.waiting.order.charged == driver.real_cost()
    assert_empty(driver)


def test_two_steps_under_way_at_once() -> None:
    """As async scheduling runs, with preemption, every request ends and every charge is what it used."""
    driver, draw = Driver(sized(64, kv_tokens=6_000)), random.Random(3)
    for number in range(200):
        driver.add(f"r{number}", draw.randint(10, 200), draw.randint(50, 400), rank=draw.randrange(4))
    preempted = 0
    while driver.scheduler.has_unfinished_requests():
        preempted += len(driver.take_off().preempted)
        if len(driver.flights) == 2:
            driver.land()
    while driver.flights:
        driver.land()
    assert preempted
    assert sorted(driver.ended) == sorted(driver.requests)
    assert driver.scheduler.waiting.order.charged == driver.real_cost()
    assert_empty(driver)


def test_a_request_can_be_aborted_anywhere() -> None:
    """Waiting, amid its prefill, decoding or preempted: vLLM frees it, and it has paid for what was computed."""
    driver = Driver(EngineModel(kv_tokens=640, whole_prompts=False, step_tokens=128, running_max=4))
    driver.add("decoding", 100, 200)
    driver.step()
    driver.add("prefilling", 400, 50)
    driver.step()
    driver.add("waiting", 100, 50)
    assert [r.request_id for r in driver.scheduler.waiting] == ["waiting"]
    prefilling, decoding = driver.requests["prefilling"], driver.requests["decoding"]
    assert 0 < prefilling.num_computed_tokens < 400
    order = driver.scheduler.waiting.order
    driver.scheduler.finish_requests("waiting", RequestStatus.FINISHED_ABORTED)
    driver.scheduler.finish_requests("prefilling", RequestStatus.FINISHED_ABORTED)
    driver.scheduler.finish_requests("prefilling", RequestStatus.FINISHED_ABORTED)
    assert order.charged == 100 + 4 * 200 + prefilling.num_computed_tokens
    driver.scheduler.finish_requests("decoding", RequestStatus.FINISHED_ABORTED)
    assert order.charged == driver.real_cost(["decoding"]) + prefilling.num_computed_tokens
    assert decoding.num_output_tokens > 0
    driver.step()
    assert_empty(driver)


def test_a_preempted_request_can_be_aborted() -> None:
    """It leaves the line, and has paid for what it produced."""
    driver = Driver(sized(8, kv_tokens=640))
    for number in range(4):
        driver.add(f"r{number}", 100, 300)
    preempted: set[str] = set()
    while not preempted:
        preempted = driver.step().preempted
    name = preempted.pop()
    driver.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
    assert name not in [r.request_id for r in driver.scheduler.waiting]
    driver.drain()
    assert driver.scheduler.waiting.order.charged == driver.real_cost()
    assert_empty(driver)


def test_a_blocked_request_lets_others_pass_and_keeps_its_place() -> None:
    """While its grammar is compiled others of its class run, it is charged nothing, and it goes first when it is ready."""
    driver = Driver(sized(1))
    blocked = driver.add("blocked", 10, 5, rank=0, key=1.0)
    blocked.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    driver.add("next", 10, 5, rank=0, key=2.0)
    driver.add("last", 10, 5, rank=0, key=3.0)
    assert driver.step().admitted == ["next"]
    assert driver.scheduler.deferred_waiting == {blocked}
    assert driver.scheduler.waiting.order.charged == 30
    blocked.status = RequestStatus.WAITING
    driver.drain()
    assert driver.ended == ["next", "blocked", "last"]
    assert_empty(driver)


def test_the_prefix_cache_can_be_reset_while_requests_run() -> None:
    """All that runs goes back to the line at once, first, and no charge is lost."""
    driver = Driver(sized(4))
    for number in range(6):
        driver.add(f"r{number}", 50, 20, rank=number % 4)
    running = driver.step().admitted
    assert driver.scheduler.reset_prefix_cache(reset_running_requests=True)
    driver.add("urgent", 50, 20, rank=0)
    assert driver.step().resumed == running
    driver.drain()
    assert driver.scheduler.waiting.order.charged == driver.real_cost()
    assert_empty(driver)


def test_requests_that_say_nothing_are_served() -> None:
    """Without any field of ours they are one tenant's in the last class, by arrival, and pay what they use."""
    driver = Driver(sized(1))
    for number in range(5):
        driver.add(f"r{number}", 10, 5)
    driver.drain()
    assert driver.ended == [f"r{number}" for number in range(5)]
    assert driver.scheduler.waiting.order.queues[3].served_cost == driver.real_cost()


def test_with_stock_vllm_a_stamp_puts_realtime_before_batch_of_the_last_fifteen_seconds() -> None:
    """A priority of dispatch time in microseconds and 5 s for each rank does that, as int64, and older batch goes first."""
    driver, draw = Driver(sized(4), AsyncScheduler, "priority"), random.Random(4)
    second, now, sent = 1_000_000, 1_790_000_000_000_000, {}
    older_first = 0
    for number in range(1500):
        now += draw.randrange(second // 10)
        if number % 2 == 0 or draw.random() < 0.55:
            rank = draw.choice((0, 3))
            name = f"{rank}-{number}"
            sent[name] = now
            stamp = now + rank * 5 * second
            assert stamp < 2**63
            driver.add(name, 10, draw.randint(5, 40), priority=stamp)
        step = driver.step()
        waiting = {request.request_id for request in driver.scheduler.waiting}
        for batch in (name for name in step.admitted if name.startswith("3")):
            passed = [sent[name] - sent[batch] for name in waiting if name.startswith("0")]
            assert all(late >= 15 * second for late in passed)
            older_first += bool(passed)
    assert older_first
    assert {name[0] for name in driver.ended} == {"0", "3"}


def test_a_policy_with_an_order_of_its_own_stops_the_start() -> None:
    """Under `priority` vLLM would choose whom to preempt by another order."""
    with pytest.raises(gate.UnfitVllm, match="--scheduling-policy fcfs"):
        Driver(ROOMY, FairlaneScheduler, "priority")


def test_another_version_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything of it is touched."""
    monkeypatch.setattr(vllm, "__version__", "0.33.0")
    with pytest.raises(gate.UnfitVllm, match=r"this is vLLM 0\.33\.0"):
        Driver(ROOMY)


def test_a_wider_queue_of_vllm_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that vLLM's queues have got and ours lacks is named."""
    monkeypatch.setattr(RequestQueue, "__abstractmethods__", RequestQueue.__abstractmethods__ | {"rotate"})
    with pytest.raises(gate.UnfitVllm, match=r"the plugin's RequestQueue\.rotate"):
        Driver(ROOMY)


def test_another_way_to_an_end_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the method through which every request ends no charge would ever be settled."""
    monkeypatch.delattr(Scheduler, "_free_request")
    with pytest.raises(gate.UnfitVllm, match=r"AsyncScheduler\._free_request"):
        Driver(ROOMY)


def test_wrong_classes_stop_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not come up with an order that nobody wanted."""
    monkeypatch.setenv("FAIRLANE_CLASSES", "/nowhere/fairlane.yaml")
    with pytest.raises(SettingsError, match="cannot be read"):
        Driver(ROOMY)
