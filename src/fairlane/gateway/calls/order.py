"""What an engine is told about a request beside its body: its order, and a name.

The stamp is the time of dispatch, so whatever the gateway has sent earlier runs earlier, in engines that were started anew
and on gateways that know nothing of each other; only a class that is behind its guarantee is spared the step that
its rank adds. So an urgent request overtakes waiting ones by a bounded time. It is never corrected: an engine would not hear.
"""

from collections.abc import Mapping
from secrets import token_hex

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
    written = orjson.dumps({XARGS_PREFIX + name: value for name, value in ours.items()})
    return b"{%b,%b" % (call.xargs, written[1:]) if call.xargs else written


def engine_id(request_id: str) -> bytes:
    """The request's name at its engine, another each time that it is sent.

    An engine may act on a name, as by ending the request that has it, or mistake two requests of one name for each other. Clients
    choose theirs and can guess those of others, so the engine's has a part that nobody can.
    """
    return f"{request_id}-{token_hex(16)}".encode()
