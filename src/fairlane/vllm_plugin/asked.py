"""What a request of vLLM asks for: class, tenant, cost and place in its tenant's line.

The gateway sends it in the body's `vllm_xargs`, which vLLM hands on as `sampling_params.extra_args`. Whatever is missing or nonsense
counts as not said: the request then belongs to the last class and to the tenant without a name, and costs what it may become.
"""

import math
from functools import lru_cache
from itertools import count
from typing import Any, Protocol

from fairlane.core.request import Request
from fairlane.core.values import Tenant
from fairlane.vllm_plugin.configured import Configured

NAMELESS = ""
NAME_MAX = 256  # characters: longer names are nonsense
UNLISTED_MAX = 4096  # tenants without a weight of their own that are kept, because making one costs as much as reading all else
KEY_MAX = 2**53  # up to where a whole number is kept exactly as a key


class EngineRequest(Protocol):
    """What is read of a request of vLLM."""

    request_id: str
    arrival_time: float  # Unix time
    priority: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_computed_tokens: int
    num_preemptions: int
    max_tokens: int
    sampling_params: Any  # None for pooling
    prefill_stats: Any  # None once it was told


def whole(value: object, least: int, most: int | None = None) -> int | None:
    """The value, if it is a whole number within these bounds."""
    if type(value) is not int or value < least or (most is not None and value > most):
        return None
    return value


def number(value: object) -> float | None:
    """The value as a finite number, if it is one."""
    if type(value) is not float and (type(value) is not int or abs(value) > KEY_MAX):
        return None
    return float(value) if math.isfinite(value) else None


class Asked:
    """Reads requests of vLLM as requests of the core."""

    def __init__(self, configured: Configured) -> None:
        self._configured = configured
        self._classes = configured.classes
        self._key = configured.policy.tenants.key
        self._unlisted = lru_cache(UNLISTED_MAX)(Tenant)
        self._ids = count(1)

    def read(self, engine: EngineRequest) -> Request:
        """The request as the order sees it, with its cost and its key."""
        extra = getattr(engine.sampling_params, "extra_args", None) or {}
        prompt, most, weights = engine.num_prompt_tokens, engine.max_tokens, self._configured.weights
        foretold = whole(extra.get("fairlane_output"), 0)
        output = most if foretold is None else min(foretold, most)
        request = Request(
            id=next(self._ids),
            tenant=self._tenant(extra.get("fairlane_tenant")),
            pool="",
            rank=self._rank(extra.get("fairlane_class"), engine.priority),
            model="",
            prompt_tokens=prompt,
            output_tokens=output,
            limit_tokens=prompt + most,
            longest_prompt=prompt,
            max_tokens=prompt + most,
            arrived_at=engine.arrival_time,
        )
        cost = whole(extra.get("fairlane_cost"), 1)
        by_size = weights.input * prompt + weights.output * output
        request.cost = max(1, by_size if cost is None else min(cost, weights.input * prompt + weights.output * most))
        key = number(extra.get("fairlane_key"))
        request.key = self._key(request, self._classes[request.rank]) if key is None else key
        return request

    def _rank(self, asked: object, priority: int) -> int:
        last = len(self._classes) - 1
        rank = whole(asked, 0, last)
        if rank is None and self._configured.by_priority:
            rank = min(max(priority, 0), last)
        return last if rank is None else rank

    def _tenant(self, asked: object) -> Tenant:
        name = asked if isinstance(asked, str) and len(asked) <= NAME_MAX else NAMELESS
        return self._configured.tenants.get(name) or self._unlisted(name)
