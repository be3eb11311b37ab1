"""Engines behind a name, on the live gateway: they come, go, come back, and what runs there never notices."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fairlane.gateway.engines.names import ADDRESSES_MAX, EMPTY_MAX
from tests.caller import chat, finish
from tests.harness import settings
from tests.inside import Inside
from tests.meters import until
from tests.stub import Plan, Stub

ONE, TWO, THREE = "127.0.0.1", "127.0.0.2", "127.0.0.3"
FAST_S = 0.02  # between two lookups


def behind_a_name(stub: Stub, slots: int = 2, **more: object) -> dict[str, object]:
    """The settings of a gateway whose engines are at all addresses of a name, on the stub's port."""
    url = f"dns+http://engines.test:{stub.port}"
    engine = {"name": "e", "kind": "openai", "url": url, "slots": slots, "probe_s": 0.1, "lookup_s": FAST_S, **more}
    return settings([engine])


@pytest.fixture
def stubs() -> Iterator[dict[str, Stub]]:
    """Three servers with one port, each with an address of its own."""
    with ExitStack() as stack:
        first = stack.enter_context(Stub())
        others = [stack.enter_context(Stub(host=host, port=first.port)) for host in (TWO, THREE)]
        yield {stub.host: stub for stub in (first, *others)}
        assert [stub.faults for stub in (first, *others)] == [[]] * 3


@contextmanager
def serving(stubs: dict[str, Stub], folder: Path, *addresses: str, slots: int = 2, **more: object) -> Iterator[Inside]:
    """A gateway whose engines at these addresses are up; in the end nothing is left counted."""
    with Inside(behind_a_name(stubs[ONE], slots, **more), folder, *addresses) as gateway:
        gateway.wait_for_engines(*(f"e@{address}" for address in addresses))
        yield gateway
        gateway.assert_idle()


def release(*stubs: Stub) -> None:
    """Lets all that is held go on, and holds nothing more."""
    for stub in stubs:
        stub.plan = Plan()
        stub.release_all()


def test_each_address_is_an_engine_and_a_new_one_gets_what_waits(stubs: dict[str, Stub], tmp_path: Path) -> None:
    """Requests that wait for the only engine start on one that comes; all have the settings of the entry and the name as host."""
    for stub in stubs.values():
        stub.plan = Plan(held=True)
    with serving(stubs, tmp_path, ONE, price_per_hour=1.5, api_key="k") as gateway:
        calls = [gateway.open(chat()) for _ in range(4)]
        gateway.wait_for(running=2, waiting=2)
        gateway.look_up(TWO, ONE)
        gateway.wait_for(running=4, waiting=0)
        assert (len(stubs[ONE].running), len(stubs[TWO].running)) == (2, 2)
        rows = gateway.engines()
        assert {(row["slots"], row["price_per_hour"], row["draining"], row["leaving"]) for row in rows.values()} == {(2, 1.5, False, False)}
        seen = stubs[TWO].requests[0]
        assert (seen.header("host"), seen.header("authorization")) == (f"engines.test:{stubs[ONE].port}", "Bearer k")
        release(*stubs.values())
        assert [answer.status for answer in finish(calls)] == [200] * 4


def test_an_engine_whose_address_is_gone_ends_what_it_runs(stubs: dict[str, Stub], tmp_path: Path) -> None:
    """It gets nothing new, its stream goes on to its end, and then it and its series are gone."""
    stubs[TWO].plan = Plan(held=True)
    with serving(stubs, tmp_path, TWO, slots=1) as gateway:
        call = gateway.open(chat(stream=True))
        until(lambda: len(stubs[TWO].running) == 1, "it runs")
        gateway.look_up(ONE)
        until(lambda: gateway.engines()["e@127.0.0.1"]["up"], "the other is up")
        assert [gateway.open(chat(str(number))).finish().status for number in range(3)] == [200] * 3
        row = gateway.engines()["e@127.0.0.2"]
        assert (row["up"], row["draining"], row["leaving"], row["running"]) == (True, True, True, 1)
        assert gateway.metric("fairlane_engine_draining", engine="e@127.0.0.2") == 1
        assert len(stubs[TWO].requests) == 1
        release(stubs[TWO])
        answer = call.finish()
        assert (answer.status, answer.whole) == (200, True)
        assert answer.body.endswith(b"data: [DONE]\n\n")
        gateway.wait_for_engines("e@127.0.0.1")
        assert {dict(labels)["engine"] for _, labels in gateway.metrics() if "engine" in dict(labels)} == {"e@127.0.0.1"}
        until(lambda: not stubs[TWO].connections, "its connections are closed")
        events = gateway.events()
        assert (events.count("engine_leaving"), events.count("engine_gone"), events.count("engine_down")) == (1, 1, 0)


def test_all_go_and_come_back_while_requests_wait(stubs: dict[str, Stub], tmp_path: Path) -> None:
    """A name without an address for long leaves no engine: what waits is kept, what is new is refused, and all is served after."""
    stubs[ONE].plan = Plan(held=True)
    with serving(stubs, tmp_path, ONE, slots=1) as gateway:
        calls = [gateway.open(chat()) for _ in range(3)]
        gateway.wait_for(running=1, waiting=2)
        gateway.addresses = ()
        gateway.wait_for_lookups(EMPTY_MAX + 1)
        assert (gateway.waiting(), gateway.running(), gateway.admin("/readyz")[0]) == (2, 1, 503)
        refused = gateway.open(chat()).finish()
        assert (refused.status, refused.code) == (503, "no_engine")
        release(stubs[ONE])
        until(lambda: not gateway.engines(), "no engine is left")
        gateway.look_up(ONE)
        assert [answer.status for answer in finish(calls)] == [200] * 3
        assert gateway.admin("/readyz")[0] == 200


def test_an_address_that_comes_back_in_time_is_the_same_engine(stubs: dict[str, Stub], tmp_path: Path) -> None:
    """It keeps its count: with two places and a stream from before it takes one request more, however often it flaps."""
    stubs[ONE].plan = Plan(held=True)
    with serving(stubs, tmp_path, ONE) as gateway:
        calls = [gateway.open(chat(stream=True))]
        until(lambda: len(stubs[ONE].running) == 1, "it runs")
        for _ in range(3):
            gateway.look_up(THREE)
            assert gateway.engines()["e@127.0.0.1"]["leaving"]
            gateway.look_up(ONE)
            assert not gateway.engines()["e@127.0.0.1"]["leaving"]
        gateway.wait_for_engines("e@127.0.0.1")
        calls += [gateway.open(chat()) for _ in range(3)]
        gateway.wait_for(running=2, waiting=2)
        assert len(stubs[ONE].running) == 2
        release(stubs[ONE])
        assert [answer.status for answer in finish(calls)] == [200] * 4


def test_a_lookup_that_fails_changes_nothing_and_is_told_once(stubs: dict[str, Stub], tmp_path: Path) -> None:
    """Requests are served all the while; when it works again that is told, too."""
    with serving(stubs, tmp_path, ONE, TWO) as gateway:
        gateway.addresses = OSError("the resolver is away")
        gateway.wait_for_lookups(4)
        assert gateway.open(chat()).finish().status == 200
        gateway.wait_for_engines("e@127.0.0.1", "e@127.0.0.2")
        gateway.look_up(ONE)
        gateway.wait_for_engines("e@127.0.0.1")
        until(lambda: gateway.events().count("engine_lookup_works") == 1, "that it works is logged")
        assert gateway.events().count("engine_lookup_failed") == 1


def test_a_request_that_connects_to_an_engine_that_goes_is_served_elsewhere(stubs: dict[str, Stub], tmp_path: Path) -> None:
    """Its engine is neither listening nor, in that moment, listed any more: it goes back to its place, and nobody is told."""
    with serving(stubs, tmp_path, ONE, TWO, slots=1, probe_s=60) as gateway:
        stubs[ONE].refuse()
        calls = [gateway.open(chat()) for _ in range(4)]
        gateway.addresses = (TWO,)
        assert [answer.status for answer in finish(calls)] == [200] * 4
        assert (len(stubs[ONE].requests), len(stubs[TWO].requests)) == (0, 4)
        gateway.wait_for_engines("e@127.0.0.2")
        stubs[ONE].accept()


def test_of_many_addresses_a_bounded_number_is_used(stubs: dict[str, Stub], tmp_path: Path) -> None:
    """300 addresses make 256 engines and their series, said once; when most go again, so do the series."""
    many = [f"127.0.1.{number}" for number in range(1, 251)] + [f"127.0.2.{number}" for number in range(1, 50)]
    with serving(stubs, tmp_path, ONE) as gateway:
        before = len(gateway.metrics())
        gateway.look_up(ONE, *many)
        assert len(gateway.engines()) == ADDRESSES_MAX
        assert gateway.open(chat()).finish().status == 200
        assert gateway.events().count("engine_addresses") == 1
        gateway.look_up(ONE)
        gateway.wait_for_engines("e@127.0.0.1")
        assert len(gateway.metrics()) == before


def test_the_system_looks_the_name_up(tmp_path: Path) -> None:
    """With the real resolver, this machine's own name makes an engine of its address."""
    with Stub() as stub:
        engine = {"name": "e", "kind": "openai", "url": f"dns+http://localhost:{stub.port}", "slots": 2, "lookup_s": FAST_S}
        with Inside(settings([engine]), tmp_path, resolve=False) as gateway:
            until(lambda: any(row["up"] for row in gateway.engines().values()), "it is up")
            assert gateway.engines()["e@127.0.0.1"]["up"]
            assert gateway.open(chat()).finish().status == 200
            assert stub.requests[0].header("host") == f"localhost:{stub.port}"


def test_a_drained_engine_that_goes_and_comes_back_is_drained(stubs: dict[str, Stub], tmp_path: Path) -> None:
    """What an operator keeps work from stays so until it is resumed, also where its server was restarted and its name forgot it."""
    with serving(stubs, tmp_path, ONE, TWO) as gateway:
        name = f"e@{TWO}"
        assert gateway.admin(f"/admin/engines/{name}/drain", "POST")[0] == 200
        gateway.look_up(ONE)
        until(lambda: name not in gateway.engines(), "it is gone")
        gateway.look_up(ONE, TWO)
        until(lambda: bool(gateway.engines().get(name, {}).get("up")), "it is back")
        assert gateway.engines()[name]["draining"]
        assert gateway.admin(f"/admin/engines/{name}/resume", "POST")[0] == 200
        assert not gateway.engines()[name]["draining"]
