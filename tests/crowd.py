"""Many requests at once: an engine is held full while they queue up, and then serves them in the order it is given.

The held requests have the text `held`; that of every other request begins with the name of its sender.
"""

from collections.abc import Iterable

from tests.caller import Call, chat
from tests.harness import Gateway, key_of
from tests.meters import until
from tests.stub import Plan, Seen, Stub
from tests.stub.cost import metered


def fill(gateway: Gateway, stub: Stub, slots: int) -> list[Call]:
    """Take all places of the engine with held requests, so that what follows waits until `drain`."""
    stub.plan = Plan(held=True)
    calls = [gateway.open(chat("held")) for _ in range(slots)]
    until(lambda: len(stub.running) == slots, "the engine is full")
    return calls


def drain(stub: Stub, delay_s: float = 0.004) -> None:
    """Serve what waits, in the scheduler's order, with the use that each request states."""
    stub.plan = lambda seen: metered(seen, delay_s)
    stub.release_all()


def served(stub: Stub) -> list[Seen]:
    """Return the requests in the order in which the engine got them, without those that only held the places."""
    return [seen for seen in list(stub.requests) if seen.text != "held"]


def send(gateway: Gateway, name: str, count: int, *, length: int = 0, max_tokens: Iterable[int] = ()) -> list[Call]:
    """Send requests of a tenant and wait until all of them wait; their prompts have at least `length` characters."""
    before = gateway.waiting()
    sizes = list(max_tokens) or [8] * count
    bodies = [chat(f"{name} {number}".ljust(length, "x"), max_tokens=sizes[number]) for number in range(count)]
    calls = [gateway.open(body, key=key_of(name)) for body in bodies]
    gateway.wait_for(waiting=before + count, timeout_s=20)
    return calls
