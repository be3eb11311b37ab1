"""Stubs and gateways for the cases. However a test used them: nothing may be left counted, broken or complained of."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness import Gateway, Json, Start
from tests.stub import Plan, Stub


@pytest.fixture
def stub() -> Iterator[Stub]:
    """Give a scripted upstream."""
    with Stub() as upstream:
        yield upstream
        assert upstream.faults == []


@pytest.fixture
def other_stub() -> Iterator[Stub]:
    """Give a second one."""
    with Stub() as upstream:
        yield upstream
        assert upstream.faults == []


@pytest.fixture
def start(stub: Stub, tmp_path: Path) -> Iterator[Start]:
    """Give a function that starts a gateway from settings; at the end all its gauges have to read 0 and it has to stop cleanly."""
    with ExitStack() as stack:
        gateways: list[Gateway] = []

        def run(configuration: Json, *, ready: bool = True) -> Gateway:
            folder = tmp_path / f"gateway{len(gateways)}"
            folder.mkdir()
            gateways.append(stack.enter_context(Gateway(configuration, folder, ready=ready)))
            return gateways[-1]

        yield run
        stub.plan = Plan()
        stub.release_all()
        for gateway in gateways:
            gateway.hang_up()
            gateway.assert_idle()
