"""What the prompt of a request may share with others in an engine's prefix cache, and what an engine tells of that.

All of it is made of numbers that are there anyway (see `shape`), so it costs three hashes of short tuples.
"""

from collections.abc import Mapping

from fairlane.core.request import Prefix
from fairlane.gateway.calls.body import Call


def of(call: Call, tenant: str, prompt_tokens: int) -> Prefix | None:
    """The keys of a chat of so many prompt tokens; None for what is no chat.

    Conversations are told apart by their tenants as well; a system prompt is the same for all of them. One that is longer or
    shorter than another of the same template has something else in it, most likely near its beginning.
    """
    shape, model = call.shape, call.model
    if not shape.turn:
        return None
    whole = hash((tenant, model, shape.turn)) | 1
    before = hash((tenant, model, shape.before)) | 1 if shape.before else 0
    instructions, size = shape.instructions, call.prompt
    if not instructions:
        return Prefix(whole, before)
    part = instructions / max(instructions, size.ascii + size.cjk + size.other)
    return Prefix(whole, before, hash((model, shape.template, instructions)) | 1, int(part * prompt_tokens))


def is_told(usage: Mapping[str, object]) -> bool:
    """Whether an engine's usage object tells how many tokens it had in its cache."""
    details = usage.get("prompt_tokens_details")
    return isinstance(details, dict) and type(details.get("cached_tokens")) is int
