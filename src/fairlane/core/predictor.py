"""How long an answer will be: from what answers to similar requests were, and how far that was off.

Similar is, from the general to the special: the same model; and class; or tenant; and template; and size of prompt,
roughly and finely; or, in a conversation, the length of the turn before, and how long ago that was. The histograms of
these levels are mixed from the special to the general. A level's weight is `n/(n + prior)` for its `n` answers, times a
gate: the learned odds that it foretells answers better than the more general ones, per (tenant, model). So prompt sizes
speak where they separate services, and are not heard where they are noise.

The upper length is kept at its coverage by adaptive conformal inference per (model, class): `θ += η·(exceeded − (1 − τ))`
in logarithms, whatever the distribution. An answer that was cut off by its cap says only that it would have been longer:
it counts as one of those that were, chosen evenly by a low-discrepancy sequence. Failed and cancelled ones teach nothing.
Deterministic; no clock: `now` is given.
"""

import math
from collections import OrderedDict
from typing import NamedTuple

from fairlane.core.histogram import EDGES, Lengths, Mixture, bucket

NODES_MAX = 10_000  # histograms kept, about 3 kB each; the longest unused is forgotten
UNKNOWN = 256  # tokens of an answer where nothing was learned
UPPER_SHARE = 0.9
UPPER_GAIN = 0.05
UPPER_SHIFT_MAX = math.log(8)
TAIL_PART = 0.5  # of the way from the mean to the mean of the longest tenth, in the order
PRIORS = (1, 30, 30, 30, 10, 10, 10, 10)  # answers after which a level counts half
GATE_START, GATE_MAX, GATE_KEEP = 1.0, 5.0, 0.99
TURN_PRIOR = 5  # answers as long as the previous turn, which a conversation is assumed to have had
NEGLIGIBLE = 0.005  # weight of more general levels that are not asked
_TURN_LEVEL = 6
_GOLDEN = (math.sqrt(5) - 1) / 2


class Asked(NamedTuple):
    """What is known of a request that its answer's length may depend on."""

    tenant: str
    model: str
    rank: int = 0
    template: int = 0  # of the system prompt, endpoint, response format and tools
    prompt_tokens: int = 1
    previous: int | None = None  # tokens of the last answer in the same conversation
    idle_s: float | None = None  # since that


class Prediction(NamedTuple):
    """The expected length, one that a tenth of answers exceed, and the tail-inflated mean that requests are ordered by.

    Each from 1 to the cap. `uncapped` is the upper length before the cap, which calibration has to know.
    """

    mean: int
    upper: int
    order: int
    uncapped: float


Key = tuple[str | int, ...]


class Predictor:
    """Predicts and learns; see the module for how."""

    __slots__ = ("_nodes", "_shifts", "_turn")

    def __init__(self) -> None:
        self._nodes: OrderedDict[Key, Lengths] = OrderedDict()
        self._shifts: dict[tuple[str, int], float] = {}
        self._turn = 0.0

    def predict(self, asked: Asked, cap: int | None = None, produced: int = 0) -> Prediction:
        """The prediction for an answer of at most `cap` tokens that is longer than `produced`."""
        mixture = self.mixture(asked)
        gone, gone_part = mixture.up_to(produced) if produced else (0.0, 0.0)
        left = 1.0 - gone
        most = float(EDGES[-1]) if cap is None else float(cap)
        if left < 1e-6:  # longer than all that is known: a quarter more
            return _within(produced * 1.25, produced * 1.25, produced * 1.25, cap, produced)
        below, below_part = mixture.up_to(most)
        over = most * (1.0 - below) + below_part
        mean = (over - gone_part) / left
        raw = mixture.quantile(gone + UPPER_SHARE * left)
        tail = most
        if raw < most:
            share, part = mixture.up_to(raw)
            tail = (over - part) / max(1.0 - share, 1e-9)
        shift = self._shifts.get((asked.model, asked.rank), 0.0)
        return _within(mean, raw * math.exp(shift), mean + TAIL_PART * max(0.0, tail - mean), cap, produced)

    def mixture(self, asked: Asked) -> Mixture:
        """The distribution of the answer's length, without cap and calibration."""
        keys = _keys(asked)
        nodes = self._nodes
        gates = self._gates(keys)
        parts = []
        left = 1.0
        for level in range(len(keys) - 1, -1, -1):
            node = nodes.get(keys[level])
            if node is None:
                if level != _TURN_LEVEL:
                    continue
                node = _like_the_turn_before(asked)
            node.renew()
            evidence = node.mass / node.weight
            weight = left * evidence / (evidence + PRIORS[level])
            if level:
                weight *= _open(gates[level])
            parts.append((weight, node.cum, node.part))
            left -= weight
            if left < NEGLIGIBLE:
                break
        parts.append((left, _COLD.cum, _COLD.part))
        return Mixture(parts)

    def learn(self, asked: Asked, cap: int | None, prediction: Prediction, tokens: int, now: float) -> None:
        """Take note of an answer that ended by itself or at its cap."""
        length = float(max(1, tokens))
        if cap is not None and tokens >= cap:
            length = self._beyond(asked, cap)
        elif cap is None or prediction.uncapped < cap:
            self._calibrate(asked, exceeded=tokens > prediction.upper)
        index = bucket(length)
        keys = _keys(asked)
        gates = self._gates(keys)
        expected = 1 / 8
        for level, key in enumerate(keys):
            node = self._nodes.get(key)
            if node is None:
                node = self._make(key, level, asked, gates)
            else:
                self._nodes.move_to_end(key)
            if node.mass:
                evidence = node.mass / node.weight
                weight = evidence / (evidence + PRIORS[level])
                own = weight * node.near(index) + (1.0 - weight) * expected
                if level:
                    odds = gates[level] * GATE_KEEP + math.log((own + 1e-4) / (expected + 1e-4))
                    gates[level] = max(-GATE_MAX, min(GATE_MAX, odds))
                    own = expected + _open(odds) * (own - expected)
                expected = own
            node.learn(index, length, now)

    def _beyond(self, asked: Asked, cap: int) -> float:
        """The length of one of the answers that are known to have been longer."""
        mixture = self.mixture(asked)
        gone, _ = mixture.up_to(cap)
        self._turn = (self._turn + _GOLDEN) % 1.0
        return max(cap + 1.0, mixture.quantile(gone + (1.0 - gone) * self._turn)) if gone < 1.0 - 1e-6 else cap + 1.0

    def _calibrate(self, asked: Asked, *, exceeded: bool) -> None:
        key = asked.model, asked.rank
        shift = self._shifts.get(key, 0.0) + UPPER_GAIN * (exceeded - (1.0 - UPPER_SHARE))
        self._shifts[key] = max(-UPPER_SHIFT_MAX, min(UPPER_SHIFT_MAX, shift))

    def _gates(self, keys: list[Key]) -> list[float]:
        """The gates of the tenant and model, else of the model."""
        for level in (2, 0):
            node = self._nodes.get(keys[level])
            if node is not None and node.gates is not None:
                return node.gates
        return _GATES

    def _make(self, key: Key, level: int, asked: Asked, gates: list[float]) -> Lengths:
        if len(self._nodes) >= NODES_MAX:
            self._nodes.popitem(last=False)
        node = self._nodes[key] = _like_the_turn_before(asked) if level == _TURN_LEVEL else Lengths()
        if level in {0, 2}:
            node.gates = list(gates)
        return node


def _keys(asked: Asked) -> list[Key]:
    """The levels that a request has, from the general to the special. A conversation's first turn is a template of its own."""
    tenant, model, rank, template, prompt_tokens, previous, idle_s = asked
    shape = 2 * template + (previous is not None)
    size = round(16 * math.log2(prompt_tokens + 1))
    keys: list[Key] = [
        (model,),
        (model, rank),
        (model, tenant),
        (model, tenant, shape),
        (model, tenant, shape, size >> 3),
        (model, tenant, shape, size >> 3, size),
    ]
    if previous is not None:
        turn = round(2 * math.log2(previous + 1))
        keys.append((model, tenant, shape, -1, turn, 0))
        if idle_s is not None:
            keys.append((model, tenant, shape, -1, turn, 1 + min(6, int(math.log2(idle_s + 1)))))
    return keys


def _open(odds: float) -> float:
    """The part of its weight that a gate lets through."""
    return 1.0 / (1.0 + math.exp(-odds))


def _like_the_turn_before(asked: Asked) -> Lengths:
    """What is assumed of a turn that follows one of this length, before any was seen."""
    tokens = max(1, asked.previous or 0)
    return _point(tokens, TURN_PRIOR)


def _point(tokens: int, answers: int) -> Lengths:
    node = Lengths()
    for _ in range(answers):
        node.learn(bucket(tokens), tokens, 0.0)
    node.renew()
    return node


def _within(mean: float, upper: float, order: float, cap: int | None, produced: int) -> Prediction:
    """Whole numbers, longer than what was produced and within the cap."""
    least = produced + 1
    most = max(1, cap) if cap is not None else 1 << 60
    whole = [max(1, min(most, max(least, math.ceil(round(value, 6))))) for value in (mean, upper, order)]
    return Prediction(whole[0], whole[1], whole[2], upper)


_COLD = _point(UNKNOWN, 1)
_GATES = [GATE_START] * len(PRIORS)
