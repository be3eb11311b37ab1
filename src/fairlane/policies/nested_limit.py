"""Three limits on one engine, nested: KV tokens by predicted peak, prompt tokens not yet prefilled, slots.

KV. Requests that run hold tokens now, will hold more until they end, and then give all back, at different times. With a_i
tokens held and rem_i predicted to come, sorted by rem falling, the most that they will ever hold together is
`max_i(Σ_{j≤i} a_j + i·rem_i)`: when request i ends, those behind it have ended and those before it have grown by rem_i. A
request fits if that peak with it is within κ of the capacity; for the less urgent classes within a little less, so that they
do not take the last room. Source: Past-Future scheduling (arXiv 2507.10150). Cost: O(1) where the sums decide; else O(running),
and a sort if something has changed since the last one.

Prefill. A batch that is prefilling decodes slowly, so the prompt tokens of streamed requests without a first token are bounded;
if there are none, a prompt of any size may start.

Fast lane. A part of the slots and of the KV is kept for short requests; short ones that run fill it first. What is more than a tenth
of the slots is lent out, and engines with fewer than 4 have no lane. Who outgrows it counts as any other.

An engine that runs nothing takes any request, so that one larger than a limit is not stuck for ever.
"""

from operator import attrgetter

from fairlane.core.request import Request
from fairlane.core.values import Engine

KV_RATIO = 0.92  # κ for the most urgent class
LOWER_RATIO = 0.93  # of κ, for the others
REPREDICT_RATIO = 0.9  # of a prediction produced: it is about to prove too short
GROWTH = 1.25  # of what was produced: the new prediction then
GROWTH_TOKENS = 16
LANE_SLOTS_MIN = 4  # an engine with fewer has no fast lane
LANE_SLOTS_PART = 10  # of the slots one in so many, rounded up, may be kept at most

_coming = attrgetter("coming_tokens")


class NestedLimit:
    """The limit of an engine whose numbers are set, or told by the engine; a number that is None does not limit."""

    def __init__(self, engine: Engine) -> None:
        self.running = 0
        self.tokens = 0  # held now
        self.final = 0  # predicted to be held at the ends, all together
        self.prefilling = 0
        self.short_running = 0
        self.short_final = 0
        self._requests: dict[Request, None] = {}  # that run
        self._falling: list[Request] | None = None  # the same by tokens to come, once somebody had to know
        self.reconfigure(engine)

    def fits(self, request: Request) -> bool:
        """Whether the request may start beside what runs."""
        if self.running >= self.slots:
            return False
        if self.running == 0:
            return True
        if not request.short and self.slots - self.running <= self.lane_places - self.short_running:
            return False
        if self.prefill_tokens is not None and self.prefilling and self.prefilling + request.prompt_tokens > self.prefill_tokens:
            return False
        if self.kv_tokens is None:
            return True
        cap = int(self.kv_tokens * (KV_RATIO if request.rank == 0 else KV_RATIO * LOWER_RATIO))
        if not request.short and self.lane_tokens > self.short_final:
            cap -= self.lane_tokens - self.short_final
        return self.final + request.prompt_tokens + request.upper_tokens <= cap or self._stays_within(cap, request)

    def take(self, request: Request) -> None:
        """Counts the request in all three."""
        self._requests[request] = self._falling = None
        prompt, upper = request.prompt_tokens, request.upper_tokens
        request.held_tokens = prompt
        request.coming_tokens = upper
        request.prefilling = prefilling = prompt if request.streams else 0
        self.running += 1
        self.tokens += prompt
        self.final += prompt + upper
        self.prefilling += prefilling
        if request.short:
            self._count_short(request, 1)

    def release(self, request: Request) -> None:
        """Takes out what `take` and `progress` have counted."""
        del self._requests[request]
        self._falling = None
        if request.short:
            self._count_short(request, -1)
        held = request.held_tokens
        self.running -= 1
        self.tokens -= held
        self.final -= held + request.coming_tokens
        self.prefilling -= request.prefilling

    def progress(self, request: Request, produced: int) -> None:
        """The request has produced so many output tokens: its prompt is prefilled, and a short prediction is raised."""
        self._falling = None
        if request.short and produced > self.lane_output:
            self._count_short(request, -1)
            request.short = False
        self.prefilling -= request.prefilling
        request.prefilling = 0
        held, coming = request.held_tokens, request.coming_tokens
        final = held + coming
        request.held_tokens = now_held = request.prompt_tokens + produced
        upper = final - request.prompt_tokens
        if produced > REPREDICT_RATIO * upper:
            upper = int(GROWTH * produced) + GROWTH_TOKENS
        request.coming_tokens = upper - produced
        self.tokens += now_held - held
        self.final += request.prompt_tokens + upper - final

    def load(self) -> float:
        """The fuller of slots and KV."""
        by_slots = self.running / self.slots if self.slots else 1.0
        return max(by_slots, self.tokens / self.kv_tokens) if self.kv_tokens else by_slots

    def reconfigure(self, engine: Engine) -> None:
        """Takes new numbers; a smaller limit stops nothing that runs."""
        self.slots = engine.slots
        self.kv_tokens = engine.kv_tokens
        self.prefill_tokens = engine.prefill_tokens
        self.lane_output = engine.lane_output
        tenth = -(-engine.slots // LANE_SLOTS_PART)
        self.lane_places = min(engine.lane_places, tenth) if engine.slots >= LANE_SLOTS_MIN else 0
        self.lane_tokens = int(engine.lane_kv * engine.kv_tokens) if self.lane_places and engine.kv_tokens else 0

    def _count_short(self, request: Request, sign: int) -> None:
        self.short_running += sign
        self.short_final += sign * (request.prompt_tokens + self.lane_output)

    def _stays_within(self, cap: int, request: Request) -> bool:
        """Whether what runs and the request will never hold more together."""
        if self._falling is None:
            self._falling = sorted(self._requests, key=_coming, reverse=True)
        coming, total, count, pending = request.upper_tokens, 0, 0, True
        for other in self._falling:
            if pending and other.coming_tokens <= coming:  # here is its own place
                pending = False
                count += 1
                total += request.prompt_tokens
                if total + count * coming > cap:
                    return False
            count += 1
            total += other.held_tokens
            if total + count * other.coming_tokens > cap:
                return False
        return not pending or total + request.prompt_tokens + (count + 1) * coming <= cap
