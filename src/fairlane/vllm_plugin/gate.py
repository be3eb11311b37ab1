"""Whether this vLLM is one that the plugin is made for: its scheduler is no public interface, and changes between releases.

Everything that the plugin calls, overrides or reads is named here and looked for at the start, so that another vLLM ends in a
sentence about what is missing and not in a wrong order.
"""

from collections.abc import Iterable, Mapping

VERSION = "0.32.0"
POLICY = "fcfs"
METHODS = ("schedule", "_free_request")  # of vLLM's scheduler, that are overridden
SCHEDULER = ("policy", "waiting", "kv_holding_waiting", "running")
REQUEST = (
    "request_id", "arrival_time", "priority", "num_prompt_tokens", "num_output_tokens", "num_computed_tokens", "num_preemptions",
    "max_tokens", "sampling_params", "prefill_stats",
)  # fmt: skip


class UnfitVllm(RuntimeError):
    """This vLLM, or the way it was started, is not one that the plugin works in."""


def demand_version(version: str) -> None:
    """Raises unless it is the version that the plugin was tested with, whoever built it."""
    if version.partition("+")[0] != VERSION:
        raise UnfitVllm(f"fairlane.vllm_plugin works in vLLM {VERSION}; this is vLLM {version}")


def demand_names(things: Mapping[str, tuple[object, Iterable[str]]]) -> None:
    """Raises if one of these things lacks one of its names, and tells all that are missing."""
    missing = [f"{what}.{name}" for what, (thing, names) in things.items() for name in names if not hasattr(thing, name)]
    if missing:
        raise UnfitVllm(f"fairlane.vllm_plugin needs what this vLLM {VERSION} lacks: {', '.join(missing)}")


def demand_policy(policy: str) -> None:
    """Raises under a policy that would keep an order of its own."""
    if policy != POLICY:
        raise UnfitVllm(f"fairlane.vllm_plugin orders the requests itself: start vLLM with --scheduling-policy {POLICY}, not {policy}")
