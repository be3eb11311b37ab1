"""Section 6 of the field cases: bounds of the queue, priority between classes, fairness between callers."""

import itertools
import time

import pytest

from tests.caller import Call, chat, finish
from tests.crowd import drain, fill, send, served
from tests.harness import Gateway, Json, Start, engine, key_of, priority_class, settings, tenant
from tests.meters import until
from tests.stub import Plan, Stub
from tests.stub.cost import cost_of
from tests.stub.plan import Usage


def two_classes(share: float) -> list[Json]:
    """Return an urgent class and a low one with this guaranteed share."""
    return [priority_class("high"), priority_class("low", min_share=share)]


def two_class_gateway(start: Start, stub: Stub, share: float) -> Gateway:
    """Start a gateway with one engine place before which `high` and `low` compete."""
    tenants = [tenant("high", **{"class": "high"}), tenant("low", **{"class": "low"})]
    return start(settings([engine(stub, 1)], classes=two_classes(share), tenants=tenants))


@pytest.mark.parametrize("share", [0.1, 0.25])
def test_fc_31_low_priority_gets_through_in_bounded_time(stub: Stub, start: Start, share: float) -> None:
    """With a share above 0 the k-th low request is served within k/share + 2 requests, whatever waits above it."""
    gateway = two_class_gateway(start, stub, share)
    calls = [*fill(gateway, stub, 1), *send(gateway, "high", 300)]
    drain(stub)
    until(lambda: len(served(stub)) >= 20, "twenty are served")
    low = [gateway.open(chat(f"low {number}"), key=key_of("low")) for number in range(10)]
    asked_after = len(served(stub))
    assert {answer.status for answer in finish([*calls, *low], 30)} == {200}
    places = [place for place, seen in enumerate(served(stub)) if seen.text.startswith("low")]
    slack = 5  # requests served while the low ones were on their way
    for number, place in enumerate(places, 1):
        assert place - asked_after <= number / share + 2 + slack
    assert places[-1] - asked_after >= 9 / share - 12, "more than its share, though higher requests waited"


def test_fc_31_without_ageing_the_order_is_strict(stub: Stub, start: Start) -> None:
    """With a share of 0 the low request is served when no higher one waits, and the metrics show how long it waited."""
    gateway = two_class_gateway(start, stub, 0)
    sent_at = time.monotonic()
    calls = [*fill(gateway, stub, 1), *send(gateway, "low", 3), *send(gateway, "high", 150)]
    asked_at = time.monotonic()
    drain(stub)
    assert {answer.status for answer in finish(calls, 30)} == {200}
    names = [seen.text.split()[0] for seen in served(stub)]
    assert names == ["high"] * 150 + ["low"] * 3
    last_at = {name: max(seen.arrived_at for seen in served(stub) if seen.text.startswith(name)) for name in ("high", "low")}
    for name, at in last_at.items():
        assert at - asked_at - 0.05 <= gateway.metric("fairlane_queue_wait_seconds_max", class_=name) <= at - sent_at + 0.05


def test_fc_32_a_big_backlog_does_not_delay_another_tenant(stub: Stub, start: Start) -> None:
    """Five requests of B that come behind 500 of A are served about every other place."""
    gateway = start(settings([engine(stub, 2)], tenants=[tenant("A"), tenant("B")]))
    calls = [*fill(gateway, stub, 2), *send(gateway, "A", 500)]
    drain(stub)
    until(lambda: len(served(stub)) >= 100, "A has been served 100 times")
    late = [gateway.open(chat(f"B {number}"), key=key_of("B")) for number in range(5)]
    asked_after = len(served(stub))
    assert {answer.status for answer in finish([*calls, *late], 30)} == {200}
    places = [place for place, seen in enumerate(served(stub)) if seen.text.startswith("B")]
    assert [place - asked_after <= 2 * number + 6 for number, place in enumerate(places, 1)] == [True] * 5


@pytest.mark.parametrize(("heavy", "light"), [("A", "B"), ("B", "A")])
def test_fc_32_shares_follow_weights(stub: Stub, start: Start, heavy: str, light: str) -> None:
    """With weights 3:1 and both waiting the service is 3:1 in cost."""
    gateway = start(settings([engine(stub, 2)], tenants=[tenant(heavy, weight=3), tenant(light, weight=1)]))
    calls = [*fill(gateway, stub, 2), *send(gateway, "A", 200), *send(gateway, "B", 200)]
    drain(stub)
    assert {answer.status for answer in finish(calls, 30)} == {200}
    both_wait = served(stub)[:250]
    costs = {name: sum(cost_of(seen) for seen in both_wait if seen.text.startswith(name)) for name in "AB"}
    assert costs[heavy] / costs[light] == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize(("length", "max_tokens"), [(0, 160), (2720, 8)], ids=["output", "prompt"])
def test_fc_32_shares_are_in_cost_not_in_requests(stub: Stub, start: Start, length: int, max_tokens: int) -> None:
    """With equal weights and A's requests about twenty times as large B is served about twenty times as often."""
    gateway = start(settings([engine(stub, 2)], tenants=[tenant("A"), tenant("B")]))
    calls = [*fill(gateway, stub, 2), *send(gateway, "A", 50, length=length, max_tokens=[max_tokens] * 50), *send(gateway, "B", 420)]
    drain(stub)
    assert {answer.status for answer in finish(calls, 30)} == {200}
    order = served(stub)
    last = max(place for place, seen in enumerate(order) if seen.text.startswith("B"))
    both_wait = order[: last - 20]
    costs = {name: sum(cost_of(seen) for seen in both_wait if seen.text.startswith(name)) for name in "AB"}
    largest = max(cost_of(seen) for seen in order)
    assert abs(costs["A"] - costs["B"]) <= 3 * largest
    assert sum(seen.text.startswith("A") for seen in both_wait) <= 25


def test_fc_32_idleness_saves_up_nothing(stub: Stub, start: Start) -> None:
    """A tenant that comes back after A was served 200 times gets its half from then on, not what it missed."""
    gateway = start(settings([engine(stub, 2)], tenants=[tenant("A"), tenant("B")]))
    assert gateway.post(chat("B first"), key=key_of("B")).status == 200
    calls = [*fill(gateway, stub, 2), *send(gateway, "A", 300)]
    drain(stub)
    until(lambda: len(served(stub)) >= 200, "A has been served 200 times")
    late = [gateway.open(chat(f"B {number}"), key=key_of("B")) for number in range(40)]
    assert {answer.status for answer in finish([*calls, *late], 30)} == {200}
    names = [seen.text[0] for seen in served(stub)][1:]
    back = names[names.index("B") :]
    assert 20 <= back[:50].count("B") <= 30
    assert max(len(list(run)) for name, run in itertools.groupby(back[:50]) if name == "B") <= 4


def test_fc_35_the_queue_bound_is_exact(stub: Stub, start: Start) -> None:
    """Of twenty simultaneous requests two run, three wait and fifteen are refused within 100 ms."""
    gateway = start(settings([engine(stub, 2)], classes=[priority_class(max_queued=3)]))
    assert gateway.post(chat("warm")).status == 200
    stub.plan = Plan(held=True)
    calls = [gateway.open(chat()) for _ in range(20)]
    gateway.wait_for(running=2, waiting=3)
    time.sleep(0.15)
    assert (len(stub.running), gateway.running(), gateway.waiting(), gateway.outcomes("rejected")) == (2, 2, 3, 15)
    refused = finish([call for call in calls if call.read(0.001)])
    assert [answer.code for answer in refused] == ["queue_full"] * 15
    stub.plan = Plan()
    stub.release_all()
    assert sorted(answer.status for answer in finish([call for call in calls if call.ended_at is None])) == [200] * 5
    assert len(stub.requests) == 6


def test_fc_35_refusals_are_quick(stub: Stub, start: Start) -> None:
    """Each of the fifteen is told within 100 ms."""
    gateway = start(settings([engine(stub, 2)], classes=[priority_class(max_queued=3)]))
    calls = fill(gateway, stub, 2)
    calls += [gateway.open(chat()) for _ in range(3)]
    gateway.wait_for(waiting=3)
    refused = finish([gateway.open(chat()) for _ in range(15)])
    assert [answer.status for answer in refused] == [429] * 15
    assert max(answer.ended_at - answer.sent_at for answer in refused) < 0.1
    stub.plan = Plan()
    stub.release_all()
    assert {answer.status for answer in finish(calls)} == {200}


def test_fc_35_a_bound_in_cost_counts_the_arrival(stub: Stub, start: Start) -> None:
    """Two requests of 800 fit under a bound of 2,050; a third does not, and one with a prompt of 3,000 never waits.

    The answers' caps are below what is assumed of a model without history, so that the cap alone is the cost.
    """
    gateway = start(settings([engine(stub, 2)], classes=[priority_class(max_queued_cost=2050)]))
    calls = fill(gateway, stub, 2)
    assert gateway.post(chat("word" * 3000)).code == "request_over_limit"
    calls += [gateway.open(chat(max_tokens=200)) for _ in range(2)]
    gateway.wait_for(waiting=2)
    assert 1600 <= gateway.metric("fairlane_backlog_cost") <= 2050
    assert gateway.post(chat(max_tokens=200)).code == "queue_full"
    assert gateway.metric("fairlane_shed_total", reason="queue_full") == 1
    stub.plan = Plan()
    stub.release_all()
    assert {answer.status for answer in finish(calls)} == {200}


def test_fc_36_the_fast_lane_stays_open(stub: Stub, start: Start) -> None:
    """Behind a long queue a short request starts at once, twenty take turns, and what declares no small cap does not qualify."""
    gateway = start(settings([engine(stub, 4)], classes=[priority_class("a"), priority_class("b")], fast_lane={}))
    stub.plan = lambda seen: Plan() if seen.json().get("max_tokens") == 16 and seen.json().get("n", 1) == 1 else Plan(held=True)
    long = [gateway.open(chat(f"long {number}", max_tokens=4000)) for number in range(12)]
    gateway.wait_for(waiting=9, running=3)
    assert gateway.open(chat("short", max_tokens=16)).finish().status == 200
    assert {answer.status for answer in finish([gateway.open(chat("short", max_tokens=16)) for _ in range(20)], 20)} == {200}
    assert len(stub.running) == 3
    others = [gateway.open(chat("no cap", max_tokens=None)), gateway.open(chat("many", max_tokens=16, n=50))]
    gateway.wait_for(waiting=11, running=3)
    stub.plan = Plan()
    stub.release_all()
    assert {answer.status for answer in finish([*long, *others], 30)} == {200}
    gateway.assert_idle()


def test_fc_36_a_history_of_short_answers_opens_the_lane(stub: Stub, start: Start) -> None:
    """Without a cap the last thirty answers decide, and long ones close the lane again."""
    classes = [priority_class("a"), priority_class("b")]
    tenants = [tenant(name, **{"class": "a"}) for name in ("quick", "slow")]
    gateway = start(settings([engine(stub, 4)], classes=classes, tenants=tenants, fast_lane={"max_output": 8}))

    def quick() -> Call:
        return gateway.open(chat("x", max_tokens=None), key=key_of("quick"))

    def ask(count: int, tokens: int) -> None:
        stub.plan = Plan(usage=Usage(10, tokens))
        assert {answer.status for answer in finish([quick() for _ in range(count)], 20)} == {200}

    def starts_at_once() -> bool:
        """Whether one more starts while three are held and others wait."""
        stub.plan = Plan(held=True)
        calls = [gateway.open(chat("held", max_tokens=4000), key=key_of("slow")) for _ in range(5)]
        gateway.wait_for(waiting=2, running=3)
        calls.append(quick())
        until(lambda: gateway.waiting() == 3 or len(stub.running) == 4, "it waits or runs")
        passed = len(stub.running) == 4
        stub.plan = Plan()
        stub.release_all()
        finish(calls, 20)
        return passed

    assert not starts_at_once()
    ask(40, 2)
    assert starts_at_once()
    ask(10, 20)
    assert not starts_at_once()
