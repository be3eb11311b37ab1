"""Crowds: many streams and many waiting requests at once, and fairness over thousands of requests."""

import random

import pytest

from tests.caller import chat, finish
from tests.crowd import drain, fill, send, served
from tests.harness import Json, Start, engine, priority_class, settings, tenant
from tests.meters import until
from tests.stub import Plan, Seen, Stub
from tests.stub.cost import cost_of, shortfall

STREAMS, WAITING, TEXT = 200, 1000, "x" * 2000
MEMORY_PER_WAITING = 16 * 1024
SHARES = {"p0": 0.30, "p1": 0.15, "p2": 0.10, "p3": 0.10}


def test_streams_and_waiting_requests_in_hundreds(stub: Stub, start: Start) -> None:
    """200 streams run and 1,000 requests wait: all are answered, and one that waits takes under 16 KiB beside its body."""
    gateway = start(settings([engine(stub, STREAMS)]))
    stub.plan = lambda seen: Plan(texts=("word ",) * 40, interval_s=0.1, held=True) if seen.json()["stream"] else Plan()
    streams = [gateway.open(chat(f"stream {number}", stream=True)) for number in range(STREAMS)]
    until(lambda: len(stub.running) == STREAMS, "all streams run", 30)
    before = gateway.resident_bytes()
    waiting = [gateway.open(chat(TEXT, stream=False)) for _ in range(WAITING)]
    gateway.wait_for(waiting=WAITING, running=STREAMS, timeout_s=30)
    grown = (gateway.resident_bytes() - before) / WAITING
    assert len(stub.requests) == STREAMS
    stub.release_all()
    answers = finish([*streams, *waiting], 60)
    assert {answer.status for answer in answers} == {200}
    assert all(answer.whole for answer in answers)
    assert {answer.body.count(b"word ") for answer in answers[:STREAMS]} == {40}
    assert all(answer.body.endswith(b"data: [DONE]\n\n") for answer in answers[:STREAMS])
    gateway.assert_idle()
    assert gateway.outcomes("completed") == STREAMS + WAITING
    assert grown < MEMORY_PER_WAITING + len(TEXT)


@pytest.mark.parametrize(
    ("heavy", "light"),
    [
        ({"count": 1620, "length": 160}, {"count": 580, "length": 160}),
        ({"count": 480, "length": 3200}, {"count": 1750, "length": 160}),
        ({"count": 2100, "length": 160}, {"count": 100, "length": 3200}),
    ],
    ids=["alike", "heavy_is_long", "light_is_long"],
)
def test_two_tenants_share_by_weight(stub: Stub, start: Start, heavy: dict[str, int], light: dict[str, int]) -> None:
    """Over 2,000 requests weights of 3:1 give 3:1 in cost within 5 %, also where one's prompts are 20 times as long."""
    tenants = [tenant("heavy", weight=3), tenant("light", weight=1)]
    gateway = start(settings([engine(stub, 8)], tenants=tenants))
    chance = random.Random(8)
    calls = fill(gateway, stub, 8)
    for name, sent in (("light", light), ("heavy", heavy)):
        calls += send(gateway, name, **sent, max_tokens=[chance.randint(4, 12) for _ in range(sent["count"])])
    drain(stub, 0)
    assert {answer.status for answer in finish(calls, 60)} == {200}
    window = served(stub)[:2000]
    assert {seen.text.split()[0] for seen in served(stub)[2000:]} == {"heavy", "light"}, "both wait all the while"
    assert _cost(window, "heavy") / _cost(window, "light") == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize("slots", [1, 8])
def test_every_class_has_its_minimum_share(stub: Stub, start: Start, slots: int) -> None:
    """With all four classes waiting none falls more than two of the largest requests behind its share, over any run."""
    classes = [priority_class(name, min_share=share) for name, share in SHARES.items()]
    tenants: list[Json] = [tenant(name, **{"class": name}) for name in SHARES]
    gateway = start(settings([engine(stub, slots)], classes=classes, tenants=tenants))
    chance = random.Random(9)
    calls = fill(gateway, stub, slots)
    for name, count in (("p3", 200), ("p2", 200), ("p1", 280), ("p0", 900)):
        calls += send(gateway, name, count, length=chance.choice([40, 400]), max_tokens=[chance.randint(4, 64) for _ in range(count)])
    drain(stub, 0)
    assert {answer.status for answer in finish(calls, 60)} == {200}
    window, rest = served(stub)[:1200], served(stub)[1200:]
    assert {seen.text[:2] for seen in rest} == set(SHARES), "all wait all the while"
    largest = max(map(cost_of, window))
    for name, share in SHARES.items():
        assert shortfall(window, name, share) <= 2 * largest, name
    assert _cost(window, "p0") > 0.6 * _cost(window, "p"), "what is left over goes by priority"


def _cost(order: list[Seen], name: str) -> int:
    return sum(cost_of(seen) for seen in order if seen.text.startswith(name))
