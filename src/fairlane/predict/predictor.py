"""How long an answer will be: from how long the answers to similar requests were, and how far off that was.

Similar is, from the general to the special: the same model; and class, or tenant; and template; and size of prompt, roughly
and finely; or, in a conversation, the length of the turn before, and how long ago it was. The histograms of these levels are
mixed, the special first. A level's weight is `n / (n + prior)` for its n answers, times its trust: the learned chance that it
foretells this tenant's answers better than what is more general. For sizes of prompts, of which there are many, the prior falls
as the trust rises: so they are heard early where they separate services, and late where they are noise. A trained model's
guess can be one more level: what it is worth is learned like the rest. Between the bins of turns, pauses and guesses
predictions are interpolated, which makes more of few answers.

The upper length keeps its coverage by adaptive conformal inference (Gibbs and Candès, 2021) per model and class,
`θ += η·(exceeded − (1 − τ))` in logarithms, whatever the distribution. An answer cut off by its cap tells only that it was to
be longer: it counts as one of the longer ones that are known, taken one after another by a low-discrepancy sequence.
"""

import math
from functools import lru_cache
from typing import Final, Protocol

from fairlane.predict.asked import Asked, Prediction
from fairlane.predict.histogram import EDGES, GROUP, GROUPS, STALE_PART, Lengths, Mixture, bucket
from fairlane.predict.kept import Kept
from fairlane.predict.levels import (
    GUESS,
    NOTHING,
    PAUSE,
    TURN,
    Bins,
    Chain,
    Levels,
    Place,
    Shares,
    Tenant,
    around,
    pauses_around,
    place_of,
    turn_tokens,
    turns_around,
)

UNKNOWN = 256  # tokens of an answer where nothing was learned
UPPER_SHARE = 0.9
UPPER_GAIN = 0.05
UPPER_SHIFT_MAX = math.log(8)
SHIFTS_MAX = 10_000  # calibrations kept, of each model and class one
TAIL_PART = 0.5  # of the way from the mean to that of the longest tenth: the order's
WEIGHT_MIN = 0.05  # a level that would count less is left out
SAID_MAX = 4_096  # predictions kept until their tenant and model have learned a part of what they know
TURN_PRIOR = 5  # answers as long as the turn before, which a conversation is assumed to have had

_GOLDEN = (math.sqrt(5) - 1) / 2
_SURE = 1.0 - 1e-6
_ROUNDING = 1e-6

_Said = tuple[float, Tenant, int, int, float]  # up to how many answers of the tenant; mean, order, upper length to calibrate
_Taken = list[tuple[float, Lengths]]  # by weight


class LengthModel(Protocol):
    """What predicts the length of answers and learns from them. Lengths are in tokens, times in seconds."""

    @property
    def histograms(self) -> "Predictor":
        """Where all that was learned is kept."""
        ...

    def mixture(self, asked: Asked, cap: int | None = None) -> Mixture:
        """The distribution of the answer's length before cap and calibration."""
        ...

    def predict(self, asked: Asked, cap: int | None = None, produced: int = 0) -> Prediction:
        """Expect an answer's length, of which `produced` tokens are there already."""
        ...

    def learn(self, asked: Asked, cap: int | None, prediction: Prediction, tokens: int, now: float) -> None:
        """Take note of how long an answer was that ended by itself or at its cap.

        Others say nothing of how long they would have been. `prediction` is what was said of it, `now` never falls.
        """
        ...


class Shift:
    """How far upper lengths are moved, in logarithms, so that they cover what they promise."""

    __slots__ = ("factor", "log")

    def __init__(self, log: float = 0.0) -> None:
        self.log = log
        self.factor = math.exp(log)

    def note(self, *, exceeded: bool) -> None:
        """Take note of whether an answer was longer than its upper length."""
        log = self.log + UPPER_GAIN * (exceeded - (1.0 - UPPER_SHARE))
        self.log = max(-UPPER_SHIFT_MAX, min(UPPER_SHIFT_MAX, log))
        self.factor = math.exp(self.log)


class Predictor:
    """Predicts from histograms, and learns. Deterministic; memory is bounded."""

    __slots__ = ("_said", "levels", "phase", "shifts")

    def __init__(self) -> None:
        self.levels = Levels()
        self.shifts: Kept[tuple[str, int, bool], Shift] = Kept(SHIFTS_MAX)  # by model, class, and whether there was a guess
        self.phase = 0.0  # of the sequence that lengthens answers which were cut off
        self._said: dict[tuple[Place, int | None], _Said] = {}

    @property
    def histograms(self) -> "Predictor":
        """Itself."""
        return self

    def predict(self, asked: Asked, cap: int | None = None, produced: int = 0) -> Prediction:
        """Predict an answer that is longer than `produced` and has at most `cap` tokens, one at least."""
        if produced:
            return self.judge(self.mixture(asked), asked, cap, produced)
        place = place_of(asked)
        said = self._said.get((place, cap))
        if said is None or said[1].learned > said[0]:
            said = self._say(place, cap)
        _, tenant, mean, order, upper = said
        upper *= self._calibration(asked)
        return Prediction(mean, _whole(upper, 1, cap), order, upper, tenant.learned)

    def judge(self, mixture: Mixture, asked: Asked, cap: int | None, produced: int = 0) -> Prediction:
        """What `predict` makes of a mixture."""
        mean, upper, order = _figures(mixture, cap, produced)
        upper *= self._calibration(asked)
        least = produced + 1
        known = self.tenant(asked).learned
        return Prediction(_whole(mean, least, cap), _whole(upper, least, cap), _whole(order, least, cap), upper, known)

    def mixture(self, asked: Asked, cap: int | None = None) -> Mixture:  # noqa: ARG002 - a trained model's depends on it
        """The distribution of the answer's length before cap and calibration."""
        place = place_of(asked)
        return self._mix(place, self.levels.chain(place[0]))

    def refine(self, mixture: Mixture, asked: Asked) -> Mixture:
        """The mixture of a request without its guess, with it."""
        (model, *_), _, _, guess = place_of(asked)
        return mixture if guess is None else self._guessed(mixture, model, guess, self.tenant(asked))

    def tenant(self, asked: Asked) -> Tenant:
        """What is known of the tenant's answers by this model."""
        return self.levels.chain(place_of(asked)[0]).tenant

    def learn(self, asked: Asked, cap: int | None, prediction: Prediction, tokens: int, now: float) -> None:
        """Take note of an answer: in the histograms, in how far the levels are trusted, and in the calibration."""
        self.calibrate(asked, cap, prediction, tokens)
        place = place_of(asked)
        length = self._beyond(asked, cap) if cap is not None and tokens >= cap else float(max(1, tokens))
        if self.levels.make_room():
            self._said.clear()
        index = bucket(length)
        group = index // GROUP
        chain = self.levels.chain_to_learn(place[0])
        tenant = chain.tenant
        expected = 1 / GROUPS
        for level, node in enumerate(chain.nodes):
            mass = node.mass
            if mass:
                gain = mass / (mass + tenant.priors[level] * node.weight) * (node.groups[group] / mass - expected)
                expected += gain * tenant.judge(level, gain, expected) if level else gain
            node.learn(index, length, now)
        for level, bins, shares in self._bins_to_learn(place, chain.turns, now):
            expected += _compare(tenant, level, bins, shares, group=group, expected=expected)
            bins.use(shares[0][1]).learn(index, length, now)

    def calibrate(self, asked: Asked, cap: int | None, prediction: Prediction, tokens: int) -> None:
        """Move the upper lengths of the model and class, unless the cap alone decided whether this one was exceeded."""
        if cap is None or prediction.uncapped < cap:
            self.shifts.use((asked.model, asked.rank, asked.guess is not None), Shift).note(exceeded=tokens > prediction.upper)

    def become(self, other: "Predictor") -> None:
        """Forget everything for what another has learned; that one is not to be used any more."""
        self.levels, self.shifts, self.phase, self._said = other.levels, other.shifts, other.phase, {}

    def _calibration(self, asked: Asked) -> float:
        shift = self.shifts.find((asked.model, asked.rank, asked.guess is not None))
        return 1.0 if shift is None else shift.factor

    def _say(self, place: Place, cap: int | None) -> _Said:
        """What is predicted for a place; kept unless its tenant is unknown."""
        chain = self.levels.chain(place[0])
        tenant = chain.tenant
        mean, upper, order = _figures(self._mix(place, chain), cap, 0)
        said = tenant.learned + STALE_PART * tenant.evidence, tenant, _whole(mean, 1, cap), _whole(order, 1, cap), upper
        if tenant.learned:
            if len(self._said) >= SAID_MAX:
                self._said.clear()
            self._said[place, cap] = said
        return said

    def _mix(self, place: Place, chain: Chain) -> Mixture:
        """The levels of a place, each as far as what is more special leaves room for it."""
        stem, turn, pause, guess = place
        nodes, tenant, turns = chain
        trust, priors = tenant.trust, tenant.priors
        taken: _Taken = []
        left = 1.0 if turn is None else _take_turns(taken, tenant, turns, turn, pause)
        for level in _CHAIN:
            node = nodes[level]
            mass = node.mass
            weight = left * trust[level] * mass / (mass + priors[level] * node.weight)
            if weight > WEIGHT_MIN:
                taken.append((weight, node))
                left -= weight
                if left <= WEIGHT_MIN:
                    break
        else:
            taken.append((left, _COLD))
            left = 0.0
        whole = 1.0 - left
        mixture = Mixture([node.weighted(weight / whole) for weight, node in taken])
        return mixture if guess is None else self._guessed(mixture, stem[0], guess, tenant)

    def _guessed(self, mixture: Mixture, model: str, guess: int, tenant: Tenant) -> Mixture:
        """A mixture after what a guess says."""
        taken: _Taken = []
        left = 1.0 - _take(taken, tenant.trust[GUESS], tenant.priors[GUESS], self.levels.bins((model,)), around(guess))
        parts = [node.weighted(weight) for weight, node in taken]
        return Mixture(parts + [(factor * left, cum, part) for factor, cum, part in mixture.parts])

    def _bins_to_learn(self, place: Place, turns: Bins, now: float) -> list[tuple[int, Bins, Shares]]:
        """The bins around what only this request has, by level, the more general first."""
        (model, *_), turn, pause, guess = place
        found: list[tuple[int, Bins, Shares]] = []
        if turn is not None:
            shares = turns_around(turn)
            nearest = turns.use(shares[0][1])
            if not nearest.learned:
                _teach(nearest, turn_tokens(turn), TURN_PRIOR, now)
            found.append((TURN, turns, shares))
            if pause is not None:
                found.append((PAUSE, turns, pauses_around(turn, pause)))
        if guess is not None:
            found.append((GUESS, self.levels.bins_to_learn((model,)), around(guess)))
        return found

    def _beyond(self, asked: Asked, cap: int) -> float:
        """The length of one of the answers that are known to be longer."""
        mixture = self.mixture(asked)
        gone, _ = mixture.up_to(cap)
        self.phase = (self.phase + _GOLDEN) % 1.0
        return max(cap + 1.0, mixture.quantile(gone + (1.0 - gone) * self.phase) if gone < _SURE else 0.0)


def _take_turns(taken: _Taken, tenant: Tenant, turns: Bins, turn: int, pause: int | None) -> float:
    """Take into a mixture what the turn before and the pause foretell, and tell the weight that is left for the rest."""
    trust, priors = tenant.trust, tenant.priors
    left = 1.0
    if pause is not None and trust[PAUSE] > WEIGHT_MIN:
        left -= _take(taken, trust[PAUSE], priors[PAUSE], turns, pauses_around(turn, pause))
    if left * trust[TURN] > WEIGHT_MIN:
        left -= _take(taken, left * trust[TURN], priors[TURN], turns, turns_around(turn), otherwise=_assumed(turn))
    return left


def _take(taken: _Taken, most: float, prior: float, bins: Bins, shares: Shares, *, otherwise: Lengths = NOTHING) -> float:
    """Take the histograms of bins into a mixture, and tell the weight that they get.

    It is `most` if they are sure, and half of it after `prior` answers.
    """
    evidence = whole = 0.0
    known: _Taken = []
    for share, number in shares:
        node = bins[number]
        mass = node.mass
        if not mass:
            node = otherwise
            mass = node.mass
        if mass:
            evidence += share * mass / node.weight
            whole += share
            known.append((share, node))
    weight = most * evidence / (evidence + prior)
    if weight <= WEIGHT_MIN:
        return 0.0
    part = weight / whole
    taken += [(share * part, node) for share, node in known]
    return weight


def _compare(tenant: Tenant, level: int, bins: Bins, shares: Shares, *, group: int, expected: float) -> float:
    """By how much the bins of a level raise the chance of an answer, as far as they are trusted after it."""
    evidence = near = whole = 0.0
    for share, number in shares:
        node = bins[number]
        mass = node.mass
        if mass:
            evidence += share * mass / node.weight
            near += share * node.groups[group] / mass
            whole += share
    if not whole:
        return 0.0
    gain = evidence / (evidence + tenant.priors[level]) * (near / whole - expected)
    return gain * tenant.judge(level, gain, expected)


def _figures(mixture: Mixture, cap: int | None, produced: int) -> tuple[float, float, float]:
    """Mean, upper length and order of an answer that is longer than `produced`; the upper one not yet capped."""
    gone, gone_part = mixture.up_to(produced) if produced else (0.0, 0.0)
    if gone > _SURE:  # longer than all that is known: a quarter more
        return 1.25 * produced, 1.25 * produced, 1.25 * produced
    rest = 1.0 - gone
    most = EDGES[-1]
    if cap is None:
        total = mixture.mean()
    else:
        most = float(cap)
        below, total = mixture.up_to(most)
        total += most * (1.0 - below)
    mean = (total - gone_part) / rest
    upper, part = mixture.bound(1.0 - (1.0 - UPPER_SHARE) * rest)
    tail = most if upper >= most else (total - part) / ((1.0 - UPPER_SHARE) * rest)
    return mean, upper, mean + TAIL_PART * max(0.0, tail - mean)


def _whole(tokens: float, least: int, cap: int | None) -> int:
    """Rounded up to whole tokens, within the bounds."""
    whole = math.ceil(tokens - _ROUNDING)
    whole = max(whole, least)
    return whole if cap is None or whole < cap else max(1, cap)


def _teach(node: Lengths, tokens: float, answers: int, now: float = 0.0) -> Lengths:
    """Let a histogram learn so many answers of one length."""
    for _ in range(answers):
        node.learn(bucket(tokens), tokens, now)
    return node


@lru_cache(1_024)
def _assumed(turn: int) -> Lengths:
    """What is assumed of conversations whose last turn was so long."""
    return _teach(Lengths(), turn_tokens(turn), TURN_PRIOR)


_COLD: Final = _teach(Lengths(), UNKNOWN, 1)
_CHAIN = range(TURN - 1, -1, -1)  # the levels of a chain, the special ones first
