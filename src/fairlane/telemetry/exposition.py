"""Metrics as text for Prometheus: one custom collector on a registry of its own, which escapes and formats.

Only `Metrics.render` imports this module, at the first scrape.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from fairlane.telemetry.histogram import BOUNDS_S, Histogram
from fairlane.telemetry.table import Metric

_LE = (*(repr(bound) for bound in BOUNDS_S), "+Inf")

Series = Mapping[tuple[str, ...], float | Histogram]


class Exposition(Collector):
    """Renders what `read` yields; it is asked anew for each scrape."""

    def __init__(self, read: Callable[[], Iterable[tuple[Metric, Series]]]) -> None:
        self._read = read
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> bytes:
        """The text format 0.0.4, in UTF-8."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[MetricFamily]:
        """One family for each row of the table, as the registry asks for them."""
        for metric, series in self._read():
            yield _family(metric, series)


def _family(metric: Metric, series: Series) -> MetricFamily:
    family = MetricFamily(metric.name.removesuffix("_total"), metric.help, metric.kind)
    for labels, value in series.items():
        named = dict(zip(metric.labels, labels, strict=True))
        if isinstance(value, Histogram):
            _add_histogram(family, named, value)
        else:
            family.add_sample(metric.name, named, value)
    return family


def _add_histogram(family: MetricFamily, named: dict[str, str], value: Histogram) -> None:
    counts = value.cumulative()
    for le, count in zip(_LE, counts, strict=True):
        family.add_sample(f"{family.name}_bucket", {**named, "le": le}, count)
    family.add_sample(f"{family.name}_sum", named, value.sum_s)
    family.add_sample(f"{family.name}_count", named, counts[-1])
