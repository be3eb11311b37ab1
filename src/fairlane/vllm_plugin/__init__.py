"""A scheduler for vLLM that lets waiting requests into the batch in Fairlane's order. `docs/vllm-plugin.md` tells how to start it.

vLLM is imported when the scheduler is asked for, so that everything else here runs without it.
"""

from typing import Any

__all__ = ["FairlaneScheduler"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the class exists only beside vLLM
    if name != "FairlaneScheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fairlane.vllm_plugin.scheduler import FairlaneScheduler  # noqa: PLC0415 - imports vLLM

    return FairlaneScheduler
