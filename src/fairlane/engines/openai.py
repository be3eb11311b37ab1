"""Any server that speaks OpenAI's API and of which nothing else is known: Ollama, a hosted one, a proxy in front of others.

Servers disagree about `/v1/models`. Most send `{"data": [{"id": ...}]}`, some the bare list, Ollama `"data": null` while
it has no model, and proxies in front of an engine often do not have the page. vLLM and SGLang add `max_model_len`.

The simulated engine of `fairlane engine` is such a server, too; it adds how many requests it runs at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from fairlane.engines.adapter import Gauges, Report, alive, answer, count, member, parse, trouble

_WELL = {200, 404, 405}  # many have no such page and are well


class OpenAI:
    """Reads `/v1/models`. How many requests the engine runs at once is not said there: the settings must tell."""

    kind = "openai"
    probes = ("/v1/models",)
    full_status = 0
    priority_sign = 0
    works_on = False

    def read(self, answers: Sequence[tuple[int, bytes]]) -> Report:
        """Report healthy whenever something answers; names and context only from a list of models."""
        status, body = answer(answers, 0)
        if not alive(status):
            return Report(healthy=False, problem=trouble(status))
        cards = _cards(parse(body)) if status == 200 else []
        names = [name for card in cards if isinstance(name := member(card, "id"), str) and name]
        contexts = [size for card in cards if (size := count(member(card, "max_model_len")))]
        return Report(
            healthy=True,
            # The largest: an engine refuses by itself what is too long for one model, we must not refuse what fits another.
            context=max(contexts, default=None),
            models=tuple(dict.fromkeys(names)),
            problem=None if status in _WELL else trouble(status),
        )


class Simulated:
    """Reads `/v1/models`, whose one card has `max_num_seqs` beside what an OpenAI server puts there."""

    kind = "simulated"
    probes = OpenAI.probes
    full_status = 0
    priority_sign = 0
    works_on = False

    def read(self, answers: Sequence[tuple[int, bytes]]) -> Report:
        """Report what any server of the API says, and the slots of the first model if they are there."""
        report = OpenAI().read(answers)
        cards = member(parse(answer(answers, 0)[1]), "data") if report.models else None
        first = cards[0] if isinstance(cards, list) and cards else None
        return replace(report, slots=count(member(first, "max_num_seqs")))


Load = Callable[[bytes], tuple[Gauges, int | None] | None]
"""Reads a page of metrics: the load and the size of the KV cache; None where it has none of the series."""


def measured(answers: Sequence[tuple[int, bytes]], load: Load, *, hint: str = "") -> Report:
    """Report from `/health`, `/v1/models` and `/metrics`, in this order: the first two decide whether it gets requests."""
    status, _ = answer(answers, 0)
    if not alive(status):
        return Report(healthy=False, problem=trouble(status))
    report = OpenAI().read(answers[1:2])
    return with_load(report, answer(answers, 2), load, hint=hint) if report.healthy else report


def with_load(report: Report, metrics: tuple[int, bytes], load: Load, *, hint: str = "") -> Report:
    """Add what a page of metrics tells; without one the engine serves as before, and `hint` says what would cure it."""
    status, page = metrics
    read = load(page) if status == 200 else None
    if read is not None:
        gauges, kv_tokens = read
        return replace(report, gauges=gauges, kv_tokens=report.kv_tokens or kv_tokens)
    what = "/metrics: " + (trouble(status) if status != 200 else "has none of the series that are known")
    what += f"; {hint}" if hint else "; its load is not known"
    return replace(report, problem=f"{report.problem}; {what}" if report.problem else what)


def _cards(document: object) -> list[object]:
    found = document if isinstance(document, list) else member(document, "data")
    return found if isinstance(found, list) else []
