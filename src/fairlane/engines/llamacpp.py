"""The HTTP server of llama.cpp, also the one that Fairlane embeds.

`/health` needs no key and says 503 until the model is loaded; `/props` tells the number of slots and the context of one
slot. A server in router mode has no slots of its own and an old one may lack members, so nothing of `/props` is needed.
"""

from collections.abc import Sequence

from fairlane.engines.adapter import Report, alive, answer, count, member, parse, trouble


class LlamaCpp:
    """Reads `/health`, then `/props`. Only the first decides whether the engine gets requests."""

    kind = "llamacpp"
    probes = ("/health", "/props")
    full_status = 0
    priority_sign = 0

    def read(self, answers: Sequence[tuple[int, bytes]]) -> Report:
        """Report slots, the context of one slot and the model's alias as far as the server tells them."""
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
            problem=None if status == 200 else f"/props: {trouble(status)}",
        )
