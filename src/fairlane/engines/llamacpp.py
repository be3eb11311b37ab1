"""The HTTP server of llama.cpp, also the one that Fairlane embeds.

`/health` needs no key and says 503 until the model is loaded; `/props` tells the number of slots and the context of one
slot. A server in router mode has no slots of its own and an old one may lack members, so nothing of `/props` is needed.

`/metrics` is there if the server was started with `--metrics`; since the slots are known without it, it is no trouble where it is
not. Old servers tell the used part of the KV cache there, too. The prompt tokens that it counts are without those that were found in
the cache.

Requests that find no slot are deferred, first come first served. An answer that does not stream is made to its end though its client has
left, and a deferred request is begun all the same.
"""

from collections.abc import Sequence

from fairlane.engines.adapter import Gauges, Report, alive, answer, count, member, parse, trouble
from fairlane.engines.series import Series

_RUNNING = "llamacpp:requests_processing"
_WAITING = "llamacpp:requests_deferred"
_KV = "llamacpp:kv_cache_usage_ratio"
_COMPUTED = "llamacpp:prompt_tokens_total"
_FOUND = "llamacpp:prompt_tokens_cached_total"


class LlamaCpp:
    """Reads `/health`, then `/props` and `/metrics`. Only the first decides whether the engine gets requests."""

    kind = "llamacpp"
    probes = ("/health", "/props", "/metrics")
    full_status = 0
    priority_sign = 0
    works_on = True

    def read(self, answers: Sequence[tuple[int, bytes]]) -> Report:
        """Report slots, the context of one slot, the model's alias and the load as far as the server tells them."""
        status, body = answer(answers, 0)
        if not alive(status):
            loading = status == 503 and b"loading" in body.lower()
            return Report(healthy=False, problem="loading model" if loading else trouble(status))
        status, body = answer(answers, 1)
        properties = parse(body) if status == 200 else None
        alias = member(properties, "model_alias")
        return Report(
            healthy=True,
            slots=count(member(properties, "total_slots")),
            context=count(member(member(properties, "default_generation_settings"), "n_ctx")),
            models=(alias,) if isinstance(alias, str) and alias else (),
            gauges=_load(*answer(answers, 2)),
            problem=None if status == 200 else f"/props: {trouble(status)}",
        )


def _load(status: int, page: bytes) -> Gauges | None:
    series = Series(page, (_RUNNING, _WAITING, _KV, _COMPUTED, _FOUND)) if status == 200 else None
    if not series:
        return None
    computed, found = series.count(_COMPUTED), series.count(_FOUND)
    return Gauges(
        running=series.count(_RUNNING),
        waiting=series.count(_WAITING),
        kv_ratio=series.ratio(_KV),
        prompt_tokens=None if computed is None or found is None else computed + found,
        cached_tokens=found,
    )
