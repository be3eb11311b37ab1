"""The line of waiting requests as vLLM uses it: what stands first, what is charged, and that nothing is left over."""

from __future__ import annotations

import random

import pytest

from fairlane.vllm_plugin.order import FLOWS_MAX
from tests.vllm_plugin.stand_in import Batch, FakeRequest, Params, Stats, asking, line


def cost(request: FakeRequest) -> int:
    """What a request cost that ran to its end: a prompt token 1, an output token 4."""
    return request.num_prompt_tokens + 4 * request.num_output_tokens


def test_the_most_urgent_class_goes_first() -> None:
    """Nobody being owed anything, rank decides and not the arrival."""
    waiting = line()
    requests = [asking(rank) for rank in (3, 2, 0, 1)]
    for request in requests:
        waiting.add_request(request)
    assert [waiting.pop_request() for _ in requests] == [requests[i] for i in (2, 3, 1, 0)]


def test_tenants_take_turns() -> None:
    """A tenant with many requests before it does not keep another one waiting."""
    waiting = line()
    crowd = [asking(1, "crowd") for _ in range(5)]
    single = asking(1, "single")
    for request in [*crowd, single]:
        waiting.add_request(request)
    assert [waiting.pop_request() for _ in range(3)] == [crowd[0], single, crowd[1]]


def test_the_key_orders_the_requests_of_a_tenant() -> None:
    """What the gateway says of a request's place decides inside its tenant."""
    waiting = line()
    late, early = asking(0, key=8.5), asking(0, key=8)
    waiting.add_request(late)
    waiting.add_request(early)
    assert waiting.pop_request() is early


def test_what_was_preempted_stands_first_and_is_not_charged_twice() -> None:
    """Preempted requests come before more urgent ones, the last to come back first, and their charge stays."""
    waiting = line()
    victims = [asking(3), asking(3)]
    for request in victims:
        waiting.add_request(request)
        assert waiting.pop_request() is request
    charged = waiting.order.charged
    waiting.add_request(asking(0))
    for request in victims:
        request.num_preemptions = 1
        waiting.prepend_request(request)
    assert len(waiting) == 3
    assert [waiting.pop_request(), waiting.pop_request()] == victims[::-1]
    assert waiting.order.charged == charged


def test_what_was_set_aside_keeps_its_place_and_costs_nothing() -> None:
    """A request that could not run yet stands where it stood, and more urgent ones that came meanwhile before it."""
    waiting = line()
    blocked, behind, urgent = asking(2, key=1.0), asking(2, key=2.0), asking(0)
    waiting.add_request(blocked)
    waiting.add_request(behind)
    assert waiting.pop_request() is blocked
    waiting.prepend_requests([blocked])
    assert (len(waiting), waiting.order.charged) == (2, 0)
    waiting.add_request(urgent)
    assert [waiting.pop_request() for _ in range(3)] == [urgent, blocked, behind]


def test_an_owed_class_is_still_owed_when_its_only_request_was_set_aside() -> None:
    """Being looked at in vain is no idleness: the class goes first once its request can run."""
    waiting = line()
    batch = asking(3)
    waiting.add_request(batch)
    for _ in range(20):
        waiting.add_request(asking(0))
    assert waiting.pop_request() is not batch
    assert waiting.pop_request() is batch
    waiting.prepend_request(batch)
    waiting.add_request(asking(0))
    assert waiting.pop_request() is batch


def test_idleness_earns_a_class_nothing() -> None:
    """A class that was away while others were served has no claim from that time, though nothing was looked at meanwhile."""
    waiting = line()
    waiting.add_request(asking(3))
    waiting.pop_request()
    for _ in range(50):
        waiting.add_request(asking(0))
        waiting.pop_request()
    waiting.add_request(asking(3))
    waiting.add_request(asking(0))
    assert waiting.pop_request().sampling_params.extra_args["fairlane_class"] == 0


@pytest.mark.parametrize("state", ["waiting", "set aside", "prefilling", "running", "preempted", "resumed"])
def test_an_abort_leaves_nothing_behind(state: str) -> None:
    """Wherever a request is when it is aborted, it stands in no line, and was charged what it used."""
    waiting = line()
    request, used = asking(1), 0
    waiting.add_request(request)
    if state != "waiting":
        waiting.pop_request()
    if state == "set aside":
        waiting.prepend_requests([request])
    elif state == "prefilling":
        request.num_computed_tokens, used = 60, 60
    elif state != "waiting":
        request.runs(5)
        used = 100 + 4 * 5
    if state in {"preempted", "resumed"}:
        request.num_computed_tokens, request.num_preemptions = 0, 1
        waiting.prepend_request(request)
    if state == "resumed":
        waiting.pop_request()
    waiting.remove_requests([request])
    waiting.finish(request)
    waiting.finish(request)
    assert (len(waiting), list(waiting), waiting._entries) == (0, [], {})
    assert waiting.order.charged == used


def test_a_request_that_ends_before_it_is_taken_out_is_gone_as_well() -> None:
    """A preempted request whose last token was under way is freed while it stands in line, and taken out after that."""
    waiting = line()
    request = asking(1)
    waiting.add_request(request)
    waiting.pop_request()
    request.num_preemptions = 1
    waiting.prepend_request(request)
    waiting.finish(request)
    waiting.remove_requests([request])
    assert (len(waiting), waiting._entries) == (0, {})


def test_a_session_that_goes_on_is_not_charged_anew() -> None:
    """A request that is put into the line again under its name stands before what was never taken."""
    waiting = line()
    session = asking(3)
    waiting.add_request(session)
    waiting.pop_request()
    waiting.add_request(asking(0))
    charged = waiting.order.charged
    waiting.add_request(session)
    assert waiting.pop_request() is session
    assert waiting.order.charged == charged


def test_an_end_can_change_who_is_first() -> None:
    """What was looked at and did not fit is not first for ever: a refund to another tenant counts at the next look."""
    waiting = line()
    long, short = asking(1, "a", max_tokens=1000), asking(1, "b")
    for request in (long, short):
        waiting.add_request(request)
        assert waiting.pop_request() is request
    after_long, after_short = asking(1, "a"), asking(1, "b")
    waiting.add_request(after_long)
    waiting.add_request(after_short)
    assert waiting.peek_request() is after_short
    long.runs(1)
    waiting.finish(long)
    assert waiting.peek_request() is after_long


def test_cached_tokens_cost_nothing() -> None:
    """What vLLM found in its prefix cache is settled as not computed."""
    waiting = line()
    request = asking(1, prefill_stats=Stats(64))
    waiting.add_request(request)
    waiting.pop_request()
    request.prefill_stats = None  # vLLM tells it once
    request.runs(10)
    waiting.finish(request)
    assert waiting.order.charged == 100 - 64 + 40


def test_output_beyond_the_prediction_is_charged_as_it_comes() -> None:
    """A request that was thought short pays in steps of 64 tokens, and no token twice."""
    waiting = line()
    request = asking(1, max_tokens=1000, output=10)
    waiting.add_request(request)
    waiting.pop_request()
    charges = []
    for output in (10, 73, 74, 100, 300, 300):
        request.runs(output)
        waiting.progress(request)
        charges.append(waiting.order.charged - 140)
    assert charges == [0, 0, 256, 256, 1024, 1024]
    waiting.finish(request)
    assert waiting.order.charged == cost(request)


def test_tenants_that_are_gone_do_not_pile_up() -> None:
    """Callers that invent a name for each request take no memory for ever, and those that have something here keep their turn."""
    waiting = line()
    busy = asking(1, "busy")
    waiting.add_request(busy)
    waiting.pop_request()
    for number in range(2 * FLOWS_MAX + 5):
        request = asking(1, f"once-{number}")
        waiting.add_request(request)
        assert waiting.pop_request() is request
        request.runs(1)
        waiting.finish(request)
        assert len(waiting.order.queues[1].flows) <= FLOWS_MAX + 1
    assert "busy" in waiting.order.queues[1].flows


def test_an_empty_line_has_no_first() -> None:
    """It raises what vLLM's own queues raise."""
    waiting = line()
    assert not waiting
    with pytest.raises(IndexError):
        waiting.peek_request()
    with pytest.raises(IndexError):
        waiting.pop_request()


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_the_books_balance(seed: int) -> None:
    """After any mix of arrivals, steps, preemptions and aborts every charge is a true cost, and nothing is left."""
    waiting = line()
    batch, draw = Batch(waiting, 4, seed), random.Random(seed)
    true = 0
    everything: list[FakeRequest] = []
    for _ in range(600):
        match draw.choice(["add", "add", "fill", "aside", "end", "end", "preempt", "abort", "progress"]):
            case "add":
                extra = {"fairlane_class": draw.randrange(5), "fairlane_tenant": draw.choice("ab"), "fairlane_cost": draw.randint(1, 900)}
                everything.append(FakeRequest(draw.randint(1, 300), 200, Params(extra | {"fairlane_output": draw.randint(0, 99)})))
                waiting.add_request(everything[-1])
            case "fill":
                batch.fill()
            case "aside" if waiting:
                taken = [waiting.pop_request() for _ in range(min(3, len(waiting)))]
                waiting.prepend_requests(taken[::-1])
            case "end" if batch.running:
                true += cost(batch.end(draw.randint(1, 200)))
            case "preempt" if batch.running:
                victim = batch.running.pop()
                victim.num_preemptions += 1
                waiting.prepend_request(victim)
            case "abort" if waiting:
                request = draw.choice(list(waiting))
                assert isinstance(request, FakeRequest)
                waiting.remove_requests([request])
                waiting.finish(request)
                true += cost(request) if request.num_preemptions else 0
            case "progress" if batch.running:
                running = draw.choice(batch.running)
                running.runs(draw.randint(running.num_output_tokens, 200))
                waiting.progress(running)
        assert len(waiting) == len(list(waiting)) == len(waiting._entries) - len(batch.running)
    while waiting or batch.running:
        batch.fill()
        true += cost(batch.end(7))
    assert waiting.order.charged == true
    assert waiting.order.queued == 0
    assert not waiting._entries
    assert not waiting._waiting
    assert all(not queue.running and not queue.cost for queue in waiting.order.queues)
