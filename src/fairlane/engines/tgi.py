"""Hugging Face's Text Generation Inference.

`/info` tells the model, the longest request and how many tokens a batch may hold, which is its KV cache as far as anyone
outside is concerned. Requests beyond `--max-concurrent-requests`, running and waiting together, get 429, on a stream perhaps
as the first event of a 200. It knows no priorities.
"""

from collections.abc import Sequence

from fairlane.engines.adapter import Gauges, Report, alive, answer, count, member, parse, trouble
from fairlane.engines.openai import with_load
from fairlane.engines.series import Series

_RUNNING = "tgi_batch_current_size"
_WAITING = "tgi_queue_size"


class TGI:
    """Reads `/health`, `/info` and `/metrics`."""

    kind = "tgi"
    probes = ("/health", "/info", "/metrics")
    full_status = 429
    priority_sign = 0
    works_on = False

    def read(self, answers: Sequence[tuple[int, bytes]]) -> Report:
        """Report the model, its sizes as far as `/info` tells them, and what runs and waits as far as the metrics do."""
        status, _ = answer(answers, 0)
        if not alive(status):
            return Report(healthy=False, problem=trouble(status))
        status, body = answer(answers, 1)
        info = parse(body) if status == 200 else None
        name = member(info, "model_id")
        report = Report(
            healthy=True,
            slots=count(member(info, "max_batch_size")),
            context=count(member(info, "max_total_tokens")),
            kv_tokens=count(member(info, "max_batch_total_tokens")),
            models=(name,) if isinstance(name, str) and name else (),
            problem=None if status == 200 else f"/info: {trouble(status)}",
        )
        return with_load(report, answer(answers, 2), _load)


def _load(page: bytes) -> tuple[Gauges, int | None] | None:
    series = Series(page, (_RUNNING, _WAITING))
    return (Gauges(running=series.count(_RUNNING), waiting=series.count(_WAITING)), None) if series else None
