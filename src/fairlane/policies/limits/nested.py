"""Three limits on one engine, nested: KV tokens by predicted peak, prompt tokens not yet prefilled, slots.

Slots. A request takes one for each of its sequences, as the engine does: one per prompt and choice. They are free together, at its end.

KV. Requests that run hold tokens now, will hold more until they end, and then give all back, at different times. With a_i
tokens held and rem_i steps predicted to come, in each of which its s_i sequences gain a token, sorted by rem falling, the most that
they will ever hold together is `max_i(Σ_{j≤i} a_j + rem_i·Σ_{j≤i} s_j)`: when request i ends, those behind it have ended and those
before it have grown for rem_i steps. A request fits if that peak with it is within κ of the capacity; for the less urgent classes
within a little less, so that they do not take the last room. Source: Past-Future scheduling (arXiv 2507.10150). Cost: O(1) where the
sums decide; else O(running), and a sort if something has changed since the last one.

Reservation. All that runs decodes in step, so steps to come are a clock: it tells when those that run will have ended far
enough for another to fit. While an engine is reserved, a request of another class may start only if it is predicted to end before
that moment (backfilling). Those that start so do not count for the moment, so that it comes however long they really are; nor do
those whose progress is not seen, which may end at any time. Cost: O(running · log running) where something has changed, else O(1).

Prefill. A batch that is prefilling decodes slowly, so the prompt tokens of streamed requests without a first token are bounded;
if there are none, a prompt of any size may start.

Fast lane. A part of the slots and of the KV is kept for short requests; short ones that run fill it first. What is more than a tenth
of the slots is lent out, and engines with fewer than 4 have no lane. Who outgrows it counts as any other.

An engine that runs nothing takes any request, so that one larger than a limit, or of more sequences than there are slots, is not
stuck for ever: it runs alone.
"""

from collections.abc import Iterable
from math import inf

from fairlane.core.request import Request
from fairlane.core.values import Engine
from fairlane.policies.limits.peak import stays_within, steps

KV_RATIO = 0.92  # κ for the most urgent class
LOWER_RATIO = 0.93  # of κ, for the others
REPREDICT_RATIO = 0.9  # of a prediction produced: it is about to prove too short
GROWTH = 1.25  # of what was produced: the new prediction then
GROWTH_TOKENS = 16
LANE_SLOTS_MIN = 4  # an engine with fewer has no fast lane
LANE_SLOTS_PART = 10  # of the slots one in so many, rounded up, may be kept at most


class NestedLimit:
    """The limit of an engine whose numbers are set, or told by the engine; a number that is None does not limit."""

    def __init__(self, engine: Engine) -> None:
        self.running = 0
        self.tokens = 0  # held now
        self.final = 0  # predicted to be held at the ends, all together
        self.prefilling = 0
        self.short_running = 0
        self.short_final = 0
        self.lane_output = 0
        self._requests: dict[Request, None] = {}  # that run
        self._falling: list[Request] | None = None  # the same by tokens to come, once somebody had to know
        self.reserved: Request | None = None
        self._before: dict[Request, None] = {}  # of what runs, what did when it was reserved
        self._moment: float | None = None  # when they will have made room for it, once somebody had to know
        self.prefill_tokens = self._prefill_set = engine.prefill_tokens
        self.reconfigure(engine)

    def fits(self, request: Request) -> bool:
        """Whether the request may start beside what runs."""
        if self.running >= self.slots or (self.reserved is not None and not self._ends_in_time(request)):
            return False
        if self.running == 0:
            return True
        free = self.slots - self.running - request.sequences
        if free < 0 or (not request.short and free < self.lane_places - self.short_running):
            return False
        if self.prefill_tokens is not None and self.prefilling and self.prefilling + request.prompt_tokens > self.prefill_tokens:
            return False
        if self.kv_tokens is None:
            return True
        prompt, upper, cap = request.prompt_tokens, request.upper_tokens, self._cap(self.kv_tokens, request, self.short_final)
        if self.final + prompt + upper <= cap:
            return True
        if self._falling is None:
            self._falling = sorted(self._requests, key=steps, reverse=True)
        return stays_within(cap, self._falling, prompt, -(-upper // request.sequences), request.sequences)

    def fits_in(self, request: Request) -> float:
        """After how many output tokens of what runs the request is predicted to fit, if nothing else starts."""
        return self._fits_in(request, self._requests)

    def reserve(self, request: Request | None) -> None:
        """Keeps other classes from what would make the request wait longer; None ends that."""
        self.reserved = request
        self._before = {} if request is None else self._requests.copy()
        self._moment = None

    def take(self, request: Request) -> None:
        """Counts the request in all three."""
        self._requests[request] = self._falling = None
        prompt, upper = request.prompt_tokens, request.upper_tokens
        request.held_tokens = prompt
        request.coming_tokens = upper
        request.prefilling = prefilling = prompt if request.streams else 0
        self.running += request.sequences
        self.tokens += prompt
        self.final += prompt + upper
        self.prefilling += prefilling
        if request.short:
            self._count_short(request, 1)

    def release(self, request: Request) -> None:
        """Takes out what `take` and `progress` have counted."""
        del self._requests[request]
        self._before.pop(request, None)
        self._falling = self._moment = None
        if request.short:
            self._count_short(request, -1)
        held = request.held_tokens
        self.running -= request.sequences
        self.tokens -= held
        self.final -= held + request.coming_tokens
        self.prefilling -= request.prefilling

    def progress(self, request: Request, produced: int) -> None:
        """The request has produced so many output tokens: its prompt is prefilled, and a short prediction is raised."""
        self._falling = self._moment = None
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
        self._moment = None
        self.slots = engine.slots
        self.kv_tokens = engine.kv_tokens
        if engine.prefill_tokens != self._prefill_set:  # else what was learned stays
            self.prefill_tokens = self._prefill_set = engine.prefill_tokens
        self.short_final += len([r for r in self._requests if r.short]) * (engine.lane_output - self.lane_output)
        self.lane_output = engine.lane_output
        tenth = -(-engine.slots // LANE_SLOTS_PART)
        self.lane_places = min(engine.lane_places, tenth) if engine.slots >= LANE_SLOTS_MIN else 0
        self.lane_tokens = int(engine.lane_kv * engine.kv_tokens) if self.lane_places and engine.kv_tokens else 0

    def _count_short(self, request: Request, sign: int) -> None:
        self.short_running += sign * request.sequences
        self.short_final += sign * (request.prompt_tokens + self.lane_output)

    def _cap(self, kv_tokens: int, request: Request, short_final: int) -> int:
        """How much all may hold together with the request, where short ones will hold so much."""
        cap = int(kv_tokens * (KV_RATIO if request.rank == 0 else KV_RATIO * LOWER_RATIO))
        return cap if request.short or self.lane_tokens <= short_final else cap - (self.lane_tokens - short_final)

    def _ends_in_time(self, request: Request) -> bool:
        """Whether the request is of the class that the engine is reserved for, or predicted to end before the moment of that."""
        head = self.reserved
        if head is None or request.rank == head.rank:
            return True
        if self._moment is None:
            self._moment = self._fits_in(head, self._before)
        return -(-request.upper_tokens // request.sequences) < self._moment

    def _fits_in(self, request: Request, among: Iterable[Request]) -> float:
        """The same if only these ran; found by bisection over their ends."""
        if self.slots <= 0:
            return inf
        falling = sorted((r for r in among if r.streams), key=steps, reverse=True)
        least, most = 0, len(falling)  # of them that run on beside it
        while least < most:
            middle = (least + most + 1) // 2
            if self._fits_beside(request, falling[:middle], steps(falling[middle]) if middle < len(falling) else 0):
                least = middle
            else:
                most = middle - 1
        return steps(falling[least]) if least < len(falling) else 0

    def _fits_beside(self, request: Request, falling: list[Request], after: int) -> bool:
        """Whether there will be slots and KV for the request after so many steps, when these run and their prompts are prefilled."""
        short = [r for r in falling if r.short]
        kept = 0 if request.short else max(0, self.lane_places - sum([r.sequences for r in short]))
        if self.slots - sum([r.sequences for r in falling]) < request.sequences + kept:
            return False
        if self.kv_tokens is None:
            return True
        cap = self._cap(self.kv_tokens, request, sum(r.prompt_tokens + self.lane_output for r in short))
        count = request.sequences
        return stays_within(cap, falling, request.prompt_tokens - after * count, -(-request.upper_tokens // count) + after, count)
