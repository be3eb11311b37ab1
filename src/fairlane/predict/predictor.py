"""How long an answer will be: from how long the answers to similar requests were, and how far off that was.

Similar is, from the general to the special: the same model; and class, or tenant; and template; and size of prompt, roughly
and finely; or, in a conversation, the length of the turn before, and how long ago it was. The histograms of these levels are
mixed, the special first. A level's weight is `n / (n + prior)` for its n answers, times a gate: the learned odds that it
foretells this tenant's answers better than what is more general. So the size of prompts is heard where it separates services
and not where it is noise. A trained model's guess can be one more level: what it is worth is learned like the rest. Between
the bins of turns, pauses and guesses predictions are interpolated, which makes more of few answers.

The upper length keeps its coverage by adaptive conformal inference per (model, class), `θ += η·(exceeded − (1 − τ))` in
logarithms, whatever the distribution. An answer cut off by its cap tells only that it was to be longer: it counts as one of
the longer ones that are known, taken in turn by a low-discrepancy sequence. Deterministic; `now` is given.
"""

import math
from collections import OrderedDict
from typing import NamedTuple, Protocol

from fairlane.predict.histogram import EDGES, GROUPS, STALE_PART, Lengths, Mixture, Weighted, bucket

NODES_MAX = 10_000  # histograms kept, 2 to 6 kB each; the longest unused is forgotten
UNKNOWN = 256  # tokens of an answer where nothing was learned
UPPER_SHARE = 0.9
UPPER_GAIN = 0.05
UPPER_SHIFT_MAX = math.log(8)
TAIL_PART = 0.5  # of the way from the mean to that of the longest tenth: the order's
PRIORS = (1, 30, 30, 30, 10, 10, 10, 10, 10)  # answers after which a level counts half
GATE_START, GATE_MAX, GATE_KEEP = 1.0, 5.0, 0.99
WEIGHT_MIN = 0.03  # a level that would count less is left out
CACHED_MAX = 4_096  # predictions kept until their tenant and model have learned a part of what they know
IDLE_MAX = 8.0  # octaves of seconds, about four minutes: longer pauses say no more
TURN, IDLE, GUESS = 6, 7, 8  # levels that only some requests have
TURN_PRIOR = 5  # answers as long as the turn before, which a conversation is assumed to have had

_GOLDEN = (math.sqrt(5) - 1) / 2
_SURE = 1.0 - 1e-6
_SMALL = 1e-4  # share below which a surprise does not grow
_ROUNDING = 1e-6
_MOST = 1 << 60
_Key = tuple[str | int, ...]
_Level = tuple[tuple[float, _Key], ...]  # one bin, or the bins around a value with the share of each
_Figures = tuple[float, float, float]
_NEVER: tuple[float, _Figures] = (-1.0, (0.0, 0.0, 0.0))


class Asked(NamedTuple):
    """What is known of a request that the length of its answer may depend on."""

    tenant: str
    model: str
    rank: int = 0
    template: int = 0  # a hash of system prompt, endpoint, response format and tools
    prompt_tokens: int = 1
    previous: int | None = None  # tokens of the last answer in the same conversation
    idle_s: float | None = None  # since that
    hints: tuple[float, ...] = ()  # what only a trained model reads
    guess: float | None = None  # of a trained model, as the logarithm of tokens to base 2


class Prediction(NamedTuple):
    """The mean, the length that a tenth of answers exceed, and the tail-inflated mean to order by: each from 1 to the cap.

    `uncapped` is the second before it is capped, which calibration has to know; `answers` is how many of this tenant and
    model were learned.
    """

    mean: int
    upper: int
    order: int
    uncapped: float
    answers: int = 0


class LengthModel(Protocol):
    """What predicts the length of answers and learns from them."""

    def predict(self, asked: Asked, cap: int | None = None, produced: int = 0) -> Prediction:
        """Expect an answer's length, of which `produced` tokens are there already."""
        ...

    def learn(self, asked: Asked, cap: int | None, prediction: Prediction, tokens: int, now: float) -> None:
        """Take note of how long an answer was."""
        ...


class Predictor:
    """Predicts and learns. Memory is bounded."""

    __slots__ = ("_cached", "nodes", "shifts", "turn")

    def __init__(self) -> None:
        self.nodes: OrderedDict[_Key, Lengths] = OrderedDict()
        self.shifts: dict[tuple[str, int, bool], float] = {}  # calibration of upper lengths
        self.turn = 0.0
        self._cached: dict[tuple[_Level | int | None, ...], tuple[float, _Figures]] = {}

    def predict(self, asked: Asked, cap: int | None = None, produced: int = 0) -> Prediction:
        """Predict an answer that is longer than `produced` and has at most `cap` tokens, one at least."""
        keys = _keys(asked)
        tenants = self.nodes.get(keys[2][0][1])
        if tenants is None or produced:
            mean, upper, order = _figures(self._mix(asked, keys), cap, produced)
        else:
            mean, upper, order = self._recall(asked, keys, cap, tenants)
        upper *= math.exp(self.shifts.get((asked.model, asked.rank, asked.guess is not None), 0.0))
        least = produced + 1
        most = max(1, cap) if cap is not None else _MOST
        return Prediction(
            min(most, max(least, math.ceil(mean - _ROUNDING))),
            min(most, max(least, math.ceil(upper - _ROUNDING))),
            min(most, max(least, math.ceil(order - _ROUNDING))),
            upper,
            0 if tenants is None else tenants.learned,
        )

    def mixture(self, asked: Asked) -> Mixture:
        """The distribution of the answer's length before cap and calibration."""
        return self._mix(asked, _keys(asked))

    def _recall(self, asked: Asked, keys: list[_Level], cap: int | None, tenants: Lengths) -> _Figures:
        """The figures of these levels, which are reckoned anew when the tenant and model have learned enough since."""
        spot = (*keys, cap)
        until, figures = self._cached.get(spot, _NEVER)
        if tenants.learned > until:
            if len(self._cached) >= CACHED_MAX:
                self._cached.clear()
            figures = _figures(self._mix(asked, keys), cap, 0)
            self._cached[spot] = tenants.learned + STALE_PART * tenants.evidence, figures
        return figures

    def _mix(self, asked: Asked, keys: list[_Level]) -> Mixture:
        nodes = self.nodes
        tenants = nodes.get(keys[2][0][1])
        gates = _GATES if tenants is None else tenants.gates
        parts: list[Weighted] = []
        left = 1.0
        for level in range(len(keys) - 1, -1, -1):
            evidence = whole = 0.0
            known = []
            for share, key in keys[level]:
                node = nodes.get(key)
                if node is None and level == TURN:
                    node = _point(asked.previous or 1, TURN_PRIOR)
                if node is not None:
                    known.append((share, node))
                    evidence += share * node.mass / node.weight
                    whole += share
            if not known:
                continue
            weight = left * evidence / (evidence + PRIORS[level])
            if level:
                weight /= 1.0 + math.exp(-gates[level])
            if weight > WEIGHT_MIN:
                left -= weight
                if left <= WEIGHT_MIN:
                    weight += left
                parts += [node.weighted(weight * share / whole) for share, node in known]
                if left <= WEIGHT_MIN:
                    return Mixture(parts)
        parts.append(_COLD.weighted(left))
        return Mixture(parts)

    def learn(self, asked: Asked, cap: int | None, prediction: Prediction, tokens: int, now: float) -> None:
        """Take note of an answer that ended by itself or at its cap. Others say nothing of how long they would have been."""
        self.calibrate(asked, cap, prediction, tokens)
        length = self._beyond(asked, cap) if cap is not None and tokens >= cap else float(max(1, tokens))
        index = bucket(length)
        keys = _keys(asked)
        nodes = self.nodes
        gates = self._node(keys[2][0][1], asked, 2).gates
        expected = 1 / GROUPS
        for level, bins in enumerate(keys):
            evidence = near = whole = 0.0
            for share, key in bins:
                node = nodes.get(key)
                if node is not None and node.mass:
                    evidence += share * node.mass / node.weight
                    near += share * node.near(index)
                    whole += share
            if whole:
                gain = evidence / (evidence + PRIORS[level]) * (near / whole - expected)
                if level:
                    odds = GATE_KEEP * gates[level] + math.log((expected + gain + _SMALL) / (expected + _SMALL))
                    gates[level] = odds = max(-GATE_MAX, min(GATE_MAX, odds))
                    gain /= 1.0 + math.exp(-odds)
                expected += gain
            if bins:
                self._node(max(bins)[1], asked, level).learn(index, length, now)

    def _beyond(self, asked: Asked, cap: int) -> float:
        """The length of one of the answers that are known to be longer."""
        mixture = self.mixture(asked)
        gone, _ = mixture.up_to(cap)
        self.turn = (self.turn + _GOLDEN) % 1.0
        return max(cap + 1.0, mixture.quantile(gone + (1.0 - gone) * self.turn) if gone < _SURE else 0.0)

    def calibrate(self, asked: Asked, cap: int | None, prediction: Prediction, tokens: int) -> None:
        """Move the upper lengths of the model and class, unless the cap alone decided whether this one was exceeded."""
        if cap is not None and prediction.uncapped >= cap:
            return
        key = asked.model, asked.rank, asked.guess is not None
        exceeded = tokens > prediction.upper
        shift = self.shifts.get(key, 0.0) + UPPER_GAIN * (exceeded - (1.0 - UPPER_SHARE))
        self.shifts[key] = max(-UPPER_SHIFT_MAX, min(UPPER_SHIFT_MAX, shift))

    def _node(self, key: _Key, asked: Asked, level: int) -> Lengths:
        """The histogram of a bin, made where there is none, as the most recently used."""
        node = self.nodes.get(key)
        if node is not None:
            self.nodes.move_to_end(key)
            return node
        if len(self.nodes) >= NODES_MAX:
            self.nodes.popitem(last=False)
        node = self.nodes[key] = _point(asked.previous or 1, TURN_PRIOR) if level == TURN else Lengths()
        if level == 2:
            node.gates = list(_GATES)
        return node


def _keys(asked: Asked) -> list[_Level]:
    """The levels of a request, the general first. What follows an answer is another template than what begins."""
    tenant, model, rank, template, prompt_tokens, previous, idle_s, _, guess = asked
    shape = 2 * template + (previous is not None)
    size = round(16 * math.log2(prompt_tokens + 1))
    stems: list[_Key] = [(model,), (model, rank), (model, tenant), (model, tenant, shape)]
    stems += [(model, tenant, shape, size >> 3), (model, tenant, shape, size >> 3, size)]
    keys: list[_Level] = [((1.0, stem),) for stem in stems]
    if previous is not None:
        turns = _around((model, tenant, shape, -TURN), 2 * math.log2(previous + 1))
        keys.append(turns)
        if idle_s is not None:
            pause = min(IDLE_MAX, math.log2(idle_s + 1))
            keys.append(tuple([(a * b, key) for a, turn in turns for b, key in _around((*turn, -IDLE), pause)]))
    if guess is not None:
        keys += [()] * (GUESS - len(keys))
        keys.append(_around((model, -GUESS), 4 * guess))
    return keys


def _around(stem: _Key, place: float) -> _Level:
    """The bins on both sides of a place, to a quarter of their distance, so that like requests share a cached prediction."""
    low, quarters = divmod(round(4 * place), 4)
    if not quarters:
        return ((1.0, (*stem, low)),)
    return ((1.0 - quarters / 4, (*stem, low)), (quarters / 4, (*stem, low + 1)))


def _figures(mixture: Mixture, cap: int | None, produced: int) -> _Figures:
    """Mean, upper length and order of an answer that is longer than `produced`; the upper one not yet capped."""
    gone, gone_part = mixture.up_to(produced) if produced else (0.0, 0.0)
    if gone > _SURE:  # longer than all that is known: a quarter more
        return 1.25 * produced, 1.25 * produced, 1.25 * produced
    most = EDGES[-1] if cap is None else float(cap)
    below, total = mixture.up_to(most)
    total += most * (1.0 - below)
    mean = (total - gone_part) / (1.0 - gone)
    upper = mixture.quantile(gone + UPPER_SHARE * (1.0 - gone))
    tail = most
    if upper < most:
        share, part = mixture.up_to(upper)
        tail = (total - part) / max(1.0 - share, 1.0 - _SURE)
    return mean, upper, mean + TAIL_PART * max(0.0, tail - mean)


def _point(tokens: int, answers: int) -> Lengths:
    """What so many answers of one length teach."""
    node = Lengths()
    for _ in range(answers):
        node.learn(bucket(tokens), tokens, 0.0)
    return node


_COLD = _point(UNKNOWN, 1)
_GATES = [GATE_START] * len(PRIORS)
