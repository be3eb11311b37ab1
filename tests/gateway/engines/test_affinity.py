"""Requests that return to where their prompt is cached, on the live gateway with two scripted engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.caller import Answer, chat
from tests.harness import engine, settings
from tests.inside import Inside
from tests.meters import until
from tests.stub import Plan, Stub, Usage

Stubs = tuple[Stub, Stub]
QUESTION = "Why is the sky blue? " * 20
SYSTEM = "You answer questions about physics in one sentence. " * 20


@pytest.fixture
def stubs() -> Iterator[Stubs]:
    """Two scripted upstreams, `a` and `b`."""
    with Stub() as one, Stub() as two:
        yield one, two
        assert (one.faults, two.faults) == ([], [])


@pytest.fixture
def gateway(stubs: Stubs, tmp_path: Path) -> Iterator[Inside]:
    """A gateway with the two as engines of two slots; `a` is taken where nothing speaks for the other."""
    with serving(stubs, tmp_path) as inside:
        yield inside
        inside.assert_idle()


def serving(stubs: Stubs, folder: Path, *, affinity: bool = True) -> Inside:
    return Inside(settings([engine(stub, 2, name) for stub, name in zip(stubs, "ab", strict=True)], prefix_affinity=affinity), folder)


def post(gateway: Inside, body: dict[str, Any]) -> Answer:
    """The answer to a request."""
    return gateway.open(body).finish()


def turns(*texts: str, system: str = "") -> dict[str, Any]:
    """The body of a conversation's last turn: questions and answers in turn."""
    said = [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]
    return chat() | {"messages": [{"role": "system", "content": system}, *said] if system else said}


def on_b(stubs: Stubs, gateway: Inside, body: dict[str, Any]) -> None:
    """Has this answered by `b`, because `a` has something to do meanwhile."""
    one, two = stubs
    one.plan = Plan(held=True)
    blocker = gateway.open(chat("x" * 4000, stream=True))
    until(lambda: len(one.running) == 1, "the first engine is busy")
    assert post(gateway, body).status == 200
    assert two.requests[-1].json()["messages"] == body["messages"]
    one.plan = Plan()
    one.release_all()
    assert blocker.finish().status == 200
    until(lambda: gateway.running() == 0, "both engines are idle")


def sent(stub: Stub, answer: Answer, text: str) -> bool:
    """Whether an answered request was this engine's last."""
    assert answer.status == 200
    return bool(stub.requests) and stub.requests[-1].text == text


def test_a_conversation_returns_to_its_engine(stubs: Stubs, gateway: Inside) -> None:
    """The next turns run where the first did; what was expected in the cache there, and what the engine told of it, is counted."""
    gateway.wait_for_engines("a", "b")
    stubs[1].plan = Plan(usage=Usage(120, 3, 100))
    on_b(stubs, gateway, turns(QUESTION))
    assert sent(stubs[1], post(gateway, turns(QUESTION, "Scattering.", "And at dusk?")), "And at dusk?")
    assert sent(stubs[1], post(gateway, turns(QUESTION, "Scattering.", "And at dusk?", "Red.", "Why?")), "Why?")
    assert gateway.metric("fairlane_cached_requests_total", engine="b") == 2
    assert 150 < gateway.metric("fairlane_cached_tokens_total", engine="b", by="expected") < 600
    assert gateway.metric("fairlane_cached_tokens_total", engine="b", by="told") == 300
    assert gateway.metric("fairlane_cached_tokens_total", engine="a") == 0
    shown = gateway.engines()["b"]["placement"]
    assert shown["prefixes"] == 3
    assert 0.7 < shown["trust"] <= 1.0


def test_another_conversation_with_the_system_prompt_goes_there_too(stubs: Stubs, gateway: Inside) -> None:
    """One without it, or with one of another length, goes to the first engine."""
    gateway.wait_for_engines("a", "b")
    on_b(stubs, gateway, turns("one", system=SYSTEM))
    assert sent(stubs[1], post(gateway, turns("two", system=SYSTEM)), "two")
    assert sent(stubs[0], post(gateway, turns("three", system=SYSTEM + "Be brief.")), "three")
    assert sent(stubs[0], post(gateway, turns("four")), "four")


def test_a_full_engine_is_not_waited_for(stubs: Stubs, gateway: Inside) -> None:
    """While both places of the engine that knows the conversation are taken, its next turn runs on the other at once."""
    one, two = stubs
    gateway.wait_for_engines("a", "b")
    on_b(stubs, gateway, turns(QUESTION))
    one.plan = two.plan = Plan(held=True)
    calls = [gateway.open(chat(str(number), stream=True)) for number in range(4)]
    until(lambda: (len(one.running), len(two.running)) == (2, 2), "all places are taken")
    one.plan = Plan()
    one.release_all()
    until(lambda: not one.running, "the first engine is idle")
    assert sent(one, post(gateway, turns(QUESTION, "Scattering.", "And at dusk?")), "And at dusk?")
    two.plan = Plan()
    two.release_all()
    assert {call.finish().status for call in calls} == {200}


@pytest.mark.parametrize("what", ["drained", "gone"])
def test_an_engine_that_is_out_is_not_waited_for(stubs: Stubs, gateway: Inside, what: str) -> None:
    """The next turn runs on the other engine, and stays there when the first one is back with nothing in its cache."""
    one, two = stubs
    gateway.wait_for_engines("a", "b")
    on_b(stubs, gateway, turns(QUESTION))
    if what == "drained":
        assert gateway.admin("/admin/engines/b/drain", "POST")[0] == 200
    else:
        two.refuse()
        until(lambda: not gateway.engines()["b"]["up"], "the loss is noticed")
    assert sent(one, post(gateway, turns(QUESTION, "Scattering.", "And at dusk?")), "And at dusk?")
    assert gateway.engines()["b"]["placement"] == {}


def test_affinity_can_be_switched_off(stubs: Stubs, tmp_path: Path) -> None:
    """Then the next turn goes to the first of two idle engines, and nothing is expected anywhere."""
    with serving(stubs, tmp_path, affinity=False) as gateway:
        gateway.wait_for_engines("a", "b")
        on_b(stubs, gateway, turns(QUESTION))
        assert sent(stubs[0], post(gateway, turns(QUESTION, "Scattering.", "And at dusk?")), "And at dusk?")
        assert gateway.metric("fairlane_cached_requests_total") == 0


def test_engines_that_tell_that_nothing_was_cached_lose_their_trust(stubs: Stubs, gateway: Inside) -> None:
    """One that does not tell keeps it."""
    gateway.wait_for_engines("a", "b")
    for told, expected in ((None, 1.0), (0, 0.9**3)):
        stubs[0].plan = Plan(usage=Usage(120, 3, told))
        for _ in range(4 if told is None else 3):
            assert post(gateway, turns(QUESTION)).status == 200
        assert gateway.engines()["a"]["placement"]["trust"] == pytest.approx(expected)


def test_a_pool_of_one_engine_remembers_nothing(stubs: Stubs, tmp_path: Path) -> None:
    """There is nothing to choose."""
    with Inside(settings([engine(stubs[0], 2, "a")]), tmp_path) as gateway:
        gateway.wait_for_engines("a")
        for _ in range(2):
            assert post(gateway, turns(QUESTION)).status == 200
        assert gateway.engines()["a"]["placement"] == {}
