"""What an answer has consumed: as its engine reports it, else as far as that can be told."""

from collections.abc import Mapping
from typing import Any

from fairlane.core.values import Outcome, Usage
from fairlane.predict.estimate import Estimate

TOKENS_MAX = 1 << 24  # of one request; an engine that tells more is not believed
OK_MAX = 299  # the last status that tells of success


def reported(usage: Mapping[str, Any]) -> Usage:
    """An engine's usage object; what is missing, no number or beyond all reason counts as 0."""
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")), _count(cached))


def unreported(estimate: Estimate, outcome: Outcome, status: int, *, events: int | None, made: int) -> Usage | None:
    """The estimate of the prompt and the events that came; `events` is None for an answer that comes as a whole.

    Of such a one that was given up, what the engine will have `made` of it in that time. None, nothing, for an error answer and for a
    failure before any output.
    """
    if outcome is Outcome.COMPLETED:
        return Usage(estimate.prompt_tokens, estimate.output_tokens if events is None else events)
    if events or (outcome is Outcome.CANCELLED and status <= OK_MAX):
        return Usage(estimate.prompt_tokens, min(estimate.output_tokens, made) if events is None else events)
    return None


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 < value <= TOKENS_MAX else 0
