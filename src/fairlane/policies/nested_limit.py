"""Three limits on one engine, nested: KV tokens by predicted peak, prompt tokens not yet prefilled, slots.

KV. Requests that run hold tokens now, will hold more until they end, and then give all back, at different times. With a_i
tokens held and rem_i predicted to come, sorted by rem falling, the most that they will ever hold together is
`max_i(Σ_{j≤i} a_j + i·rem_i)`: when request i ends, those behind it have ended and those before it have grown by rem_i. A
request fits if that peak with it is within κ of the capacity; for the less urgent classes within a little less, so that they
do not take the last room. Source: Past-Future scheduling (arXiv 2507.10150). Cost: O(running), and O(1) where the sums decide.

Prefill. A batch that is prefilling decodes slowly, so the prompt tokens of streamed requests without a first token are bounded;
if there are none, a prompt of any size may start.

An engine that runs nothing takes any request, so that one larger than a limit is not stuck for ever.
"""

from bisect import insort
from operator import attrgetter

from fairlane.core.values import Engine, Request

KV_RATIO = 0.92  # κ for the most urgent class
LOWER_RATIO = 0.93  # of κ, for the others
REPREDICT_RATIO = 0.9  # of a prediction produced: it is about to prove too short
GROWTH = 1.25  # of what was produced: the new prediction then
GROWTH_TOKENS = 16

_falling = attrgetter("order")


class _Held:
    """What a running request holds and is predicted to hold."""

    __slots__ = ("order", "prefilling", "remaining", "tokens", "upper")

    def __init__(self, request: Request) -> None:
        self.tokens = request.prompt_tokens
        self.upper = request.upper_tokens
        self.remaining = request.upper_tokens
        self.order = -self.remaining
        self.prefilling = request.prompt_tokens if request.streams else 0


class NestedLimit:
    """The limit of an engine whose numbers are set, or told by the engine; a number that is None does not limit."""

    def __init__(self, engine: Engine) -> None:
        self.running = 0
        self.tokens = 0  # held now
        self.final = 0  # predicted to be held at the ends, all together
        self.prefilling = 0
        self._held: dict[int, _Held] = {}
        self._sorted: list[_Held] = []  # by remaining, falling
        self.reconfigure(engine)

    def fits(self, request: Request) -> bool:
        """Whether the request may start beside what runs."""
        if self.running >= self.slots:
            return False
        if self.running == 0:
            return True
        if self.prefill_tokens is not None and self.prefilling and self.prefilling + request.prompt_tokens > self.prefill_tokens:
            return False
        if self.kv_tokens is None:
            return True
        cap = int(self.kv_tokens * (KV_RATIO if request.rank == 0 else KV_RATIO * LOWER_RATIO))
        if self.final + request.prompt_tokens + request.upper_tokens <= cap:
            return True
        return self._peak(request.prompt_tokens, request.upper_tokens) <= cap

    def take(self, request: Request) -> None:
        """Counts the request in all three."""
        held = self._held[request.id] = _Held(request)
        self.running += 1
        self.prefilling += held.prefilling
        self._insert(held)

    def release(self, request: Request) -> None:
        """Takes out what `take` and `progress` have counted."""
        held = self._held.pop(request.id)
        self.running -= 1
        self.prefilling -= held.prefilling
        self._remove(held)

    def progress(self, request: Request, produced: int) -> None:
        """The request has produced so many output tokens: its prompt is prefilled, and a short prediction is raised."""
        held = self._held[request.id]
        self.prefilling -= held.prefilling
        held.prefilling = 0
        self._remove(held)
        if produced > REPREDICT_RATIO * held.upper:
            held.upper = int(GROWTH * produced) + GROWTH_TOKENS
        held.tokens = request.prompt_tokens + produced
        held.remaining = held.upper - produced
        held.order = -held.remaining
        self._insert(held)

    def load(self) -> float:
        """The fuller of slots and KV."""
        by_slots = self.running / self.slots if self.slots else 1.0
        return max(by_slots, self.tokens / self.kv_tokens) if self.kv_tokens else by_slots

    def reconfigure(self, engine: Engine) -> None:
        """Takes new numbers; a smaller limit stops nothing that runs."""
        self.slots = engine.slots
        self.kv_tokens = engine.kv_tokens
        self.prefill_tokens = engine.prefill_tokens

    def _insert(self, held: _Held) -> None:
        self.tokens += held.tokens
        self.final += held.tokens + held.remaining
        insort(self._sorted, held, key=_falling)

    def _remove(self, held: _Held) -> None:
        self.tokens -= held.tokens
        self.final -= held.tokens + held.remaining
        self._sorted.remove(held)

    def _peak(self, tokens: int, remaining: int) -> int:
        """The most that what runs and one more request will hold together."""
        peak = total = count = 0
        pending = True
        for held in self._sorted:
            if pending and held.remaining <= remaining:
                pending = False
                count += 1
                total += tokens
                peak = max(peak, total + count * remaining)
            count += 1
            total += held.tokens
            here = total + count * held.remaining
            peak = max(peak, here)
        return max(peak, total + tokens + (count + 1) * remaining) if pending else peak
