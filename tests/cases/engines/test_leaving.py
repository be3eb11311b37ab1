"""An engine that works on for clients who have left: its slots are given out when it says that they are free."""

from tests.caller import chat
from tests.crowd import fill
from tests.harness import Gateway, Start, engine, settings
from tests.meters import until
from tests.stub import Plan, Stub


def tell(stub: Stub, running: int) -> None:
    """Let the engine's page say so."""
    stub.pages["/metrics"] = b"llamacpp:requests_processing %d\nllamacpp:requests_deferred 0\n" % running


def probed_again(gateway: Gateway, stub: Stub) -> None:
    """Wait until the gateway has read two more pages whole."""
    seen = len(stub.probes)
    until(lambda: len(stub.probes) >= seen + 9, "it was probed again")
    assert gateway.metric("fairlane_engine_up") == 1


def test_a_slot_comes_free_when_the_engine_says_so(stub: Stub, start: Start) -> None:
    """A caller of two leaves; the third starts not at once, but when the engine's page counts the one that is left."""
    tell(stub, 0)
    gateway = start(settings([engine(stub, 2, kind="llamacpp")]))
    until(lambda: gateway.metric("fairlane_engine_metrics_up") == 1, "it tells its load")
    leaving, staying = fill(gateway, stub, 2)
    tell(stub, 2)
    waiting = gateway.open(chat("waiting"))
    gateway.wait_for(running=2, waiting=1)
    leaving.close()
    gateway.wait_for(running=1, waiting=1)
    probed_again(gateway, stub)
    gateway.wait_for(running=1, waiting=1)
    stub.plan = Plan()
    tell(stub, 1)
    assert waiting.finish().status == 200
    stub.release_all()
    assert staying.finish().status == 200


def test_without_a_page_it_is_free_at_once(stub: Stub, start: Start) -> None:
    """Nobody could ever tell that it is: neither if there never was a page, nor if it is there no more."""
    gateway = start(settings([engine(stub, 1, kind="llamacpp")]))
    for told in (False, True):
        if told:
            tell(stub, 1)
            until(lambda: gateway.metric("fairlane_engine_metrics_up") == 1, "it tells its load")
        (leaving,) = fill(gateway, stub, 1)
        waiting = gateway.open(chat("waiting"))
        gateway.wait_for(running=1, waiting=1)
        leaving.close()
        if told:
            gateway.wait_for(running=0, waiting=1)
            del stub.pages["/metrics"]
        stub.plan = Plan()
        stub.release_all()
        assert waiting.finish().status == 200
