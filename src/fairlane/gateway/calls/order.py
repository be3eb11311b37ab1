"""What an engine is told about the order of its requests.

The stamp is the time of dispatch, so whatever the gateway has sent earlier runs earlier, in engines that were started anew
and on gateways that know nothing of each other; only a class that is behind its guarantee is spared the step that
its rank adds. So an urgent request overtakes waiting ones by a bounded time. It is never corrected: an engine would not hear.
"""

from collections.abc import Mapping

import orjson

from fairlane.core.request import Request
from fairlane.gateway.calls.body import XARGS_PREFIX, Call


def stamp(request: Request, unix_us: int, step_us: int) -> int:
    """The moment as of which a request that was just started counts, in microseconds: the earliest is the most urgent."""
    return unix_us if request.owed else unix_us + request.rank * step_us


def xargs(request: Request, call: Call) -> bytes:
    """The client's arguments for what is plugged into vLLM, and what the gateway knows of the request, for a scheduler there."""
    ours: Mapping[str, object] = {
        "class": request.rank,
        "tenant": request.tenant.name,
        "cost": request.cost,
        "key": request.key,
        "output": request.output_tokens,
    }
    return orjson.dumps({**call.xargs, **{XARGS_PREFIX + name: value for name, value in ours.items()}})
