"""The token use of a request as the stub reports it where fairness is measured: a pure function of the request.

It is the yardstick against which shares are held, and it knows nothing of the gateway's own estimates.
"""

from collections.abc import Iterable

from tests.stub.plan import Plan, Usage
from tests.stub.seen import Seen

INPUT_WEIGHT, OUTPUT_WEIGHT = 1, 4  # the gateway's defaults


def usage_of(seen: Seen) -> Usage:
    """Return a quarter of the prompt's characters and the whole of the allowed output."""
    return Usage(max(1, len(seen.text) // 4), int(seen.json()["max_tokens"]))


def cost_of(seen: Seen) -> int:
    """Return the cost that this use has."""
    usage = usage_of(seen)
    return INPUT_WEIGHT * usage.prompt + OUTPUT_WEIGHT * usage.output


def metered(seen: Seen, delay_s: float = 0.0) -> Plan:
    """Answer with exactly that use."""
    return Plan(usage=usage_of(seen), texts=("ok",), delay_s=delay_s)


def shortfall(order: Iterable[Seen], group: str, share: float) -> float:
    """Return how much a group fell behind its share at worst, in cost, over any run of this order of service.

    A request belongs to the group whose name its text begins with. The worst run is the deepest fall of
    `served to the group - share x served to all` below an earlier peak.
    """
    lead = peak = worst = 0.0
    for seen in order:
        cost = cost_of(seen)
        lead += (cost if seen.text.startswith(group) else 0) - share * cost
        peak = max(peak, lead)
        worst = max(worst, peak - lead)
    return worst
