"""Prints docs/metrics.md: `python -m fairlane.telemetry.reference > docs/metrics.md`."""

from collections.abc import Sequence

from fairlane.telemetry.histogram import BOUNDS_S
from fairlane.telemetry.table import (
    ANONYMOUS,
    CACHED,
    DIRECTIONS,
    FAILURE_KINDS,
    HEEDS,
    LIMIT_MOVES,
    NO_CLASS,
    OUTCOMES,
    REFUSAL_STATUSES,
    SHED_REASONS,
    TABLE,
)

_HEAD = """\
# Metrics

The admin port serves these at `/metrics` in the Prometheus text format 0.0.4.
This page is generated: `python -m fairlane.telemetry.reference > docs/metrics.md`.

| name | type | labels | meaning |
|---|---|---|---|
"""

_TAIL = """\

Every series exists from the start with the value 0, and no client can add one. Those of an engine behind a `dns+` URL come and go with it.

## Labels

| label | values |
|---|---|
| `pool`, `engine` | as configured |
| `class` | as configured; `{no_class}` counts requests that were refused before their class was known |
| `tenant` | as configured, and `{anonymous}` |
| `outcome` | {outcomes} |
| `reason` | {reasons} |
| `direction` | {directions} |
| `status` | {statuses} |
| `kind` | {kinds} |
| `by` | {cached} |
| `heeds` | {heeds}; see [engines](engines.md#when-it-is-full-and-in-which-order) |
| `move` | {moves}; see [engines](engines.md#how-many-requests-at-once) |

Buckets of the histograms, in seconds: {bounds}.

## Questions and their queries

95 % of the requests of each class waited no longer than:

```
histogram_quantile(0.95, sum by (class, le) (rate(fairlane_queue_wait_seconds_bucket[5m])))
```

Part of the requests that were shed, by class:

```
sum by (class) (rate(fairlane_shed_total[5m])) / sum by (class) (rate(fairlane_requests_total[5m]))
```

Classes that have requests waiting and get less than is guaranteed to them:

```
(sum by (pool, class) (rate(fairlane_served_cost_total[5m])) / on (pool) group_left sum by (pool) (rate(fairlane_served_cost_total[5m]))
  < fairlane_min_share_ratio) and fairlane_backlog_requests > 0
```
"""


def _codes(values: Sequence[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def page() -> str:
    """The text of docs/metrics.md."""
    rows = "".join(f"| `{row.name}` | {row.kind} | {_codes(row.labels) or '-'} | {row.help} |\n" for row in TABLE)
    tail = _TAIL.format(
        no_class=NO_CLASS,
        anonymous=ANONYMOUS,
        outcomes=_codes(OUTCOMES),
        reasons=_codes(SHED_REASONS),
        directions=_codes(DIRECTIONS),
        statuses=_codes(REFUSAL_STATUSES),
        kinds=_codes(FAILURE_KINDS),
        cached=_codes(CACHED),
        heeds=_codes(HEEDS),
        moves=_codes(LIMIT_MOVES),
        bounds=", ".join(f"{bound:g}" for bound in BOUNDS_S),
    )
    return _HEAD + rows + tail


if __name__ == "__main__":
    print(page(), end="")
