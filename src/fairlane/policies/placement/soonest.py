"""The engine where a request's first token is expected soonest, and the requests that no engine can begin in time.

Of the engines that have room for a request the one with the least score takes it:

    score = pace · (prompt tokens without a first token there + the request's − those expected in its prefix cache) / usual prompt
          + LOAD_PROMPTS · load

so it is counted in prompts of the usual size, and answers that are not streamed, whose first tokens nobody sees, are placed as well.
The pace of an engine is how long it takes to the first token of a usual prompt, beside its pool. Each engine's is learned from its own
first tokens: those of a pool together would hide which engine is fast, for a fast one is given more to do.

Prefix caches pull requests of one conversation or template to where they were before. Three things bound that. Only engines
within `SLACK` of the least loaded one are looked at, so nothing piles up and nothing waits for one engine while another has room.
What is expected in a cache counts as far as the engine has shown to have it: an engine without a cache says so with each answer
that tells its `cached_tokens`, and soon weighs nothing. And what is expected is bounded by the engine's KV memory, see `Prefixes`.

Cost of a choice: O(engines) with room, a lookup of three keys for each.
"""

from collections.abc import Mapping, Sequence
from math import inf

from fairlane.core.places import EngineState
from fairlane.core.request import Request
from fairlane.policies.placement.prefixes import Prefixes
from fairlane.policies.placement.ttft import SAMPLES_MIN, FirstTokenTime

SLACK = 0.25  # of its places, one request at least: by so much a preferred engine may be fuller than the least loaded one
LOAD_PROMPTS = 4.0  # a full engine is as bad as so many usual prompts ahead: what runs slows prefilling, too
PACE_MAX = 10.0
TRUST_GAIN = 0.1
USUAL_GAIN = 0.02
_ROUNDING = 1e-9


class Known:
    """What was learned of one engine of several."""

    def __init__(self) -> None:
        self.ttft = FirstTokenTime()
        self.usual_s = 0.0  # until the first token of a usual prompt; 0.0 as long as too little is known
        self.trust = 1.0  # the part of what is expected in its prefix cache that is there
        self.prefixes = Prefixes()


class Soonest:
    """The placement of one pool."""

    def __init__(self) -> None:
        self.ttft = FirstTokenTime()
        self.known: dict[str, Known] = {}  # engines that were chosen from, by name
        self._usual = 0.0  # tokens of a prompt

    def choose(self, request: Request, engines: Sequence[EngineState]) -> EngineState:
        """The one of these, which all have room, with the least score."""
        loads = [engine.limit.load() for engine in engines]
        most, usual, pool_s = min(loads) + SLACK, max(1.0, self._usual), self.ttft.seconds(int(self._usual))
        best, lowest = engines[0], inf
        for engine, load in zip(engines, loads, strict=True):
            limit = engine.limit
            if load > most and load - (most - SLACK) > 1.0 / (limit.slots or 1) + _ROUNDING:
                continue
            known = self._of(engine)
            ahead = limit.prefilling + request.prompt_tokens - _cached(known, request)
            score = _pace(known, pool_s) * ahead / usual + LOAD_PROMPTS * load
            if score < lowest:
                best, lowest = engine, score
        return best

    def is_late(self, request: Request, engines: Sequence[EngineState], now: float) -> bool:
        """Whether its first token would come too late from each of these engines if it started now."""
        due = request.due
        if due is None:
            return False
        for engine in engines:
            if self._first_token_at(request, engine, now) <= due:
                return False
        return len(engines) > 0

    def take(self, request: Request, engine: EngineState, now: float) -> None:
        """Notes what is ahead of a request that starts there now, and what its prompt leaves in the cache."""
        if not engine.limit.prefilling:
            engine.prefills_since = now
        prompt = request.prompt_tokens
        self._usual += (prompt - self._usual) * (USUAL_GAIN if self._usual else 1.0)
        cached = 0
        if request.prefix is not None:
            known = self._of(engine)
            request.cached_tokens = known.prefixes.find(request.prefix, prompt)
            cached = int(known.trust * request.cached_tokens)
            known.prefixes.note(request.prefix, prompt, engine.spec.kv_tokens)
        request.prefills_since = engine.prefills_since
        request.prefill_ahead = engine.limit.prefilling + prompt - cached

    def first_token(self, request: Request, now: float) -> None:
        """Learns from a first token that came now."""
        engine, ahead = request.engine, request.prefill_ahead
        took = now - request.prefills_since
        engine.prefills_since = now
        self.ttft.observe(ahead, took)
        known = self.known.get(engine.spec.name)
        if known is not None:
            known.ttft.observe(ahead, took)
            known.usual_s = known.ttft.seconds(int(self._usual))

    def prefills(self, engine: EngineState, seconds: float) -> int | None:
        """How many prompt tokens the engine prefills in that time; None as long as too little is known."""
        return self._line(self.known.get(engine.spec.name)).tokens(seconds)

    def told(self, request: Request, cached_tokens: int) -> None:
        """The engine of a finished request has told how many tokens of its prompt it had in its cache."""
        known = self.known.get(request.engine.spec.name)
        if known is not None and request.cached_tokens > 0:
            known.trust += (min(1.0, cached_tokens / request.cached_tokens) - known.trust) * TRUST_GAIN

    def shown(self, engine: str) -> Mapping[str, float]:
        """The engine's pace, and what should be in its prefix cache; nothing for the only engine of a pool."""
        known = self.known.get(engine)
        if known is None:
            return {}
        return {
            "pace": _pace(known, self.ttft.seconds(int(self._usual))),
            "trust": known.trust,
            "prefixes": len(known.prefixes),
            "tokens": known.prefixes.tokens,
        }

    def forget(self, engine: str) -> None:
        """The engine went out: what comes back has an empty cache, and may be another machine."""
        self.known.pop(engine, None)

    def _of(self, engine: EngineState) -> Known:
        name = engine.spec.name
        known = self.known.get(name)
        if known is None:
            known = self.known[name] = Known()
        return known

    def _first_token_at(self, request: Request, engine: EngineState, now: float) -> float:
        known, prompt, ahead = self.known.get(engine.spec.name), request.prompt_tokens, engine.limit.prefilling
        line = self._line(known)
        if known is not None:
            prompt -= _cached(known, request)
        alone = now + line.seconds(prompt)
        return max(alone, engine.prefills_since + line.seconds(ahead + prompt)) if ahead else alone

    def _line(self, known: Known | None) -> FirstTokenTime:
        """What the engine itself has shown, if that is enough, else what its pool has."""
        return self.ttft if known is None or known.ttft.samples < SAMPLES_MIN else known.ttft


def _pace(known: Known, pool_s: float) -> float:
    """Beside a pool that takes so long for a usual prompt; 1.0 as long as too little is known of either."""
    return min(max(known.usual_s / pool_s, 1.0 / PACE_MAX), PACE_MAX) if known.usual_s > 0.0 and pool_s > 0.0 else 1.0


def _cached(known: Known, request: Request) -> int:
    """Tokens of its prompt that count as cached."""
    prefix = request.prefix
    return 0 if prefix is None else int(known.trust * known.prefixes.find(prefix, request.prompt_tokens))
