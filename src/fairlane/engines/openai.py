"""Any server that speaks OpenAI's API and of which nothing else is known: vLLM, SGLang, Ollama, a hosted one.

Servers disagree about `/v1/models`. Most send `{"data": [{"id": ...}]}`, some the bare list, Ollama `"data": null` while
it has no model, and proxies in front of an engine often do not have the page. vLLM and SGLang add `max_model_len`.
"""

from collections.abc import Sequence

from fairlane.engines.adapter import Report, alive, answer, count, member, parse, trouble

_WELL = {200, 404, 405}  # many have no such page and are well


class OpenAI:
    """Reads `/v1/models`. How many requests the engine runs at once is not said there: the settings must tell."""

    kind = "openai"
    probes = ("/v1/models",)

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


def _cards(document: object) -> list[object]:
    found = document if isinstance(document, list) else member(document, "data")
    return found if isinstance(found, list) else []
