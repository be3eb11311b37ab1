"""What a gateway says about itself: its metrics, read as a monitoring system reads them."""

import contextlib
import http.client
import time
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

GAUGES = (
    "fairlane_backlog_requests",
    "fairlane_backlog_cost",
    "fairlane_running_requests",
    "fairlane_engine_running_requests",
    "fairlane_tenant_running_requests",
)
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def until(true: Callable[[], bool], what: str, timeout_s: float = 5) -> None:
    """Wait until something is so, and fail by its name if it does not become so in time."""
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"not so within {timeout_s} s: {what}"
        time.sleep(0.003)


class Meters:
    """The admin port of a gateway."""

    def __init__(self, admin_port: int) -> None:
        self._admin_port = admin_port

    def admin(self, path: str, method: str = "GET") -> tuple[int, bytes]:
        """Get a page of the admin port, or give it an order."""
        connection = http.client.HTTPConnection("127.0.0.1", self._admin_port, timeout=5)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def metrics(self) -> Series:
        """Return every series of /metrics by its name and sorted labels."""
        families = text_string_to_metric_families(self.admin("/metrics")[1].decode())
        samples = [sample for family in families for sample in family.samples]
        return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the series of a name that have these labels; the name itself must be known to /metrics.

        A Python keyword as a label is written with an underscore behind it: `class_="free"`.
        """
        page = self.admin("/metrics")[1].decode()
        assert f"# TYPE {name} " in page or f"\n{name}" in page, f"no metric {name}"
        wanted = {label.rstrip("_"): value for label, value in labels.items()}
        lines = "\n".join(line for line in page.splitlines() if line.startswith(name)) + "\n"
        samples = [sample for family in text_string_to_metric_families(lines) for sample in family.samples]
        return sum(sample.value for sample in samples if sample.name == name and wanted.items() <= sample.labels.items())

    def waiting(self) -> int:
        """Return how many requests wait."""
        return int(self.metric("fairlane_backlog_requests"))

    def running(self) -> int:
        """Return how many requests hold a place."""
        return int(self.metric("fairlane_running_requests"))

    def outcomes(self, outcome: str) -> int:
        """Return how many requests ended so."""
        return int(self.metric("fairlane_requests_total", outcome=outcome))

    def wait_for(self, *, waiting: int | None = None, running: int | None = None, timeout_s: float = 5) -> None:
        """Wait until so many requests wait or run."""
        if waiting is not None:
            until(lambda: self.waiting() == waiting, f"{waiting} requests wait", timeout_s)
        if running is not None:
            until(lambda: self.running() == running, f"{running} requests run", timeout_s)

    def in_use(self) -> Series:
        """Return the gauges that count live requests and are not 0; every such gauge has to exist."""
        series = self.metrics()
        assert {name for name, _ in series} >= set(GAUGES), f"missing: {set(GAUGES) - {name for name, _ in series}}"
        return {key: value for key, value in series.items() if key[0] in GAUGES and value != 0}

    def assert_idle(self) -> None:
        """Wait for every gauge of live requests to read 0."""
        with contextlib.suppress(AssertionError):
            until(lambda: not self.in_use(), "all gauges read 0", 3)
        assert self.in_use() == {}
