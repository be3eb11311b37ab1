"""Names that settings use, and the code behind each.

A name's module is imported when the name is first asked for, so that a start pays only for what it uses. Built-in
names are looked up here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from fairlane.core.protocols import Limit, Placement, Policy
from fairlane.core.values import Engine, PriorityClass
from fairlane.errors import SettingsError

if TYPE_CHECKING:
    from fairlane.engines.adapter import Adapter

ENGINE_ADAPTERS = {
    "embedded": "fairlane.engines.llamacpp:LlamaCpp",
    "llamacpp": "fairlane.engines.llamacpp:LlamaCpp",
    "openai": "fairlane.engines.openai:OpenAI",
    "sglang": "fairlane.engines.sglang:SGLang",
    "simulated": "fairlane.engines.openai:Simulated",
    "tgi": "fairlane.engines.tgi:TGI",
    "vllm": "fairlane.engines.vllm:VLLM",
}
POLICIES = {
    "gmp": "fairlane.policies.gmp:policy",
    "strict": "fairlane.policies.strict:policy",
    "weighted": "fairlane.policies.weighted:policy",
    "fifo": "fairlane.policies.fifo:policy",
    "aging": "fairlane.policies.aging:policy",
    "submit_aging": "fairlane.policies.submit_aging:policy",
    "vtc": "fairlane.policies.vtc:policy",
    "drr": "fairlane.policies.drr:policy",
}

ENGINE_LIMITS = {
    "nested": "fairlane.policies.limits.nested:NestedLimit",
}
PLACEMENTS = {
    "soonest": "fairlane.policies.placement.soonest:Soonest",
}


def engine_adapter(kind: str) -> Adapter:
    """Return a new adapter for an engine of this kind; an unknown kind is a SettingsError that lists the known ones."""
    return cast("Adapter", _load(ENGINE_ADAPTERS, kind, "engine kind")())


def policy(name: str, classes: Sequence[PriorityClass]) -> Policy:
    """Return a new order of these classes; an unknown policy is a SettingsError that lists the known ones."""
    return cast("Policy", _load(POLICIES, name, "policy")(classes))


def engine_limit(engine: Engine) -> Limit:
    """Return the limit of an engine."""
    return cast("Limit", _load(ENGINE_LIMITS, "nested", "limit")(engine))


def placement() -> Placement:
    """Return what chooses the engines of a pool's requests."""
    return cast("Placement", _load(PLACEMENTS, "soonest", "placement")())


def _load(table: dict[str, str], name: str, what: str) -> Any:  # noqa: ANN401 - each caller knows its table's type
    if name not in table:
        raise SettingsError([f"unknown {what} {name!r}; known: {', '.join(sorted(table))}"])
    module, _, attribute = table[name].partition(":")
    return getattr(import_module(module), attribute)
