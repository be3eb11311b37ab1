"""SGLang's server. It has a page of metrics only with `--enable-metrics`.

The series have a sample for each data-parallel rank, which are taken together. With metrics of all schedulers the tensor and
pipeline ranks of one engine tell the same numbers again, and with metrics by priority there are samples for each beside
the total, so only the first rank and the total count. Some versions write the names with `_` in the place of `:`.

A full queue is 503, on a stream as the first event of a 200. With `--enable-priority-scheduling` the highest `priority` runs
first, unless `--schedule-low-priority-values-first` turns that round.
"""

from collections.abc import Sequence

from fairlane.engines.adapter import Gauges, Report
from fairlane.engines.openai import measured
from fairlane.engines.series import Series


def _spelt(name: str) -> tuple[str, str]:
    return f"sglang:{name}", f"sglang_{name}"


_RUNNING = _spelt("num_running_reqs")
_WAITING = _spelt("num_queue_reqs")
_KV = _spelt("token_usage")
_KV_TOKENS = _spelt("max_total_num_tokens")
_RETRACTED = _spelt("num_retracted_requests_total")
_PROMPT = _spelt("prompt_tokens_total")
_CACHED = _spelt("cached_tokens_total")
_NAMES = (*_RUNNING, *_WAITING, *_KV, *_KV_TOKENS, *_RETRACTED, *_PROMPT, *_CACHED)
_ONE = {"tp_rank": "0", "pp_rank": "0", "priority": ""}


class SGLang:
    """Reads `/health`, `/v1/models` and `/metrics`."""

    kind = "sglang"
    probes = ("/health", "/v1/models", "/metrics")
    full_status = 503
    priority_sign = -1
    works_on = False

    def read(self, answers: Sequence[tuple[int, bytes]]) -> Report:
        """Report the models, the context, and load and size of the KV cache as far as the metrics tell."""
        return measured(answers, _load, hint="start it with --enable-metrics")


def _load(page: bytes) -> tuple[Gauges, int | None] | None:
    series = Series(page, _NAMES, only=_ONE)
    if not series:
        return None
    gauges = Gauges(
        running=series.count(*_RUNNING),
        waiting=series.count(*_WAITING),
        kv_ratio=series.ratio(*_KV),
        preemptions=series.count(*_RETRACTED),
        prompt_tokens=series.count(*_PROMPT),
        cached_tokens=series.count(*_CACHED),
    )
    return gauges, series.count(*_KV_TOKENS) or None
