"""vLLM's OpenAI server.

Its page of metrics has one series for each engine core (label `engine`), of which several stand behind one address with data
parallelism; they are taken together. Before version 0.10 the KV cache's series had `gpu_` in their names. The size of the
cache stands in the labels of `cache_config_info`: in tokens, in older versions as blocks and their size. The limit of
running requests is told nowhere.

Requests beyond `--max-num-queued-reqs` get 503. In a burst that check comes late: then a stream begins with 200, and its
first event is the error. With `--scheduling-policy priority` the lowest `priority` runs first; otherwise it is ignored.
"""

from collections.abc import Sequence

from fairlane.engines.adapter import Gauges, Report
from fairlane.engines.openai import measured
from fairlane.engines.series import Labels, Series

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_PREEMPTIONS = ("vllm:num_preemptions_total", "vllm:num_preemptions")
_LOOKED_UP = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
_FOUND = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
_CACHE = "vllm:cache_config_info"
_NAMES = (_RUNNING, _WAITING, *_KV, *_PREEMPTIONS, *_LOOKED_UP, *_FOUND, _CACHE)


class VLLM:
    """Reads `/health`, `/v1/models` and `/metrics`."""

    kind = "vllm"
    probes = ("/health", "/v1/models", "/metrics")
    full_status = 503
    priority_sign = 1
    works_on = False

    def read(self, answers: Sequence[tuple[int, bytes]]) -> Report:
        """Report the models, the context, and load and size of the KV cache as far as the metrics tell."""
        return measured(answers, _load)


def _load(page: bytes) -> tuple[Gauges, int | None] | None:
    series = Series(page, _NAMES)
    if not series:
        return None
    gauges = Gauges(
        running=series.count(_RUNNING),
        waiting=series.count(_WAITING),
        kv_ratio=series.ratio(*_KV),
        preemptions=series.count(*_PREEMPTIONS),
        prompt_tokens=series.count(*_LOOKED_UP),
        cached_tokens=series.count(*_FOUND),
    )
    sizes = [_kv_tokens(labels) for labels in series.labels(_CACHE)]
    return gauges, sum(sizes) if sizes and all(sizes) else None


def _kv_tokens(labels: Labels) -> int:
    """Tokens of one core's KV cache, 0 where its labels do not say."""
    return _whole(labels, "kv_cache_size_tokens") or _whole(labels, "block_size") * _whole(labels, "num_gpu_blocks")


def _whole(labels: Labels, name: str) -> int:
    digits = labels.get(name, "")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 13 else 0
