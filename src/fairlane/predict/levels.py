"""The histograms that a request is foretold from: which they are, and how far each of them is trusted.

All requests have a chain of them, from the general to the special: of the model; class; tenant; template; size of prompt,
roughly; finely. Some have bins of what is continuous beside it: of the turn before, the pause since then, and a model's guess.
Values are told in quarters of bins and no finer, so that like requests share a prediction.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from fairlane.predict.asked import Asked
from fairlane.predict.histogram import Lengths
from fairlane.predict.kept import Kept

HISTOGRAMS_MAX = 10_000  # of 2 to 8 kB, beside those of tenants, of whom each has some of these
ANSWER_USES = 9  # histograms that one answer is learned in, at most
# Of any length to the compiler: a tuple of so many floats it takes for one that was never set.
PRIORS: Final[tuple[float, ...]] = (0.3, 30.0, 10.0, 30.0, 10.0, 10.0, 10.0, 5.0, 10.0)
FALLS: Final[tuple[float, ...]] = (0.0, 0.0, 0.0, 0.0, 0.3, 0.3, 0.0, 0.0, 0.0)  # of their logarithms, as a level's log odds rise by one
TENANT, TEMPLATE, TURN, PAUSE, GUESS = 2, 3, 6, 7, 8  # the levels that are treated by name; those from the turn on are bins
TRUST_START, TRUST_MAX, TRUST_KEEP = 2.0, 5.0, 0.997  # log odds: at first, at most, and how slowly they return to the first
SIZES, TURNS, GUESSES = 16, 2, 4  # bins in an octave of tokens
PAUSE_MAX = 8.0  # octaves of seconds, about four minutes: longer pauses say no more
QUARTERS = 4

_SMALL = 1e-4  # chance below which a surprise does not grow
_BIN: Final = -1  # stands in a key before the number of a bin, where nothing else is negative
_PAUSES = 16  # numbers of bins for each turn: its own, and those of the pauses after it

_TEMPLATE_KEY: Final = ("", "", 0)

Key = tuple[str | int, ...]
Stem = tuple[str, int, str, int, int]  # model, class, tenant, template, size of prompt
Place = tuple[Stem, int | None, int | None, int | None]  # of a request: its chain; turn, pause and guess in quarters of bins
Shares = tuple[tuple[float, int], ...]  # of the bins around a value, by their numbers, the nearest first


def place_of(asked: Asked) -> Place:
    """Where a request stands. What follows an answer is another template than what begins."""
    tenant, model, rank, template, prompt_tokens, previous, idle_s, _, guess = asked
    turn = pause = None
    if previous is not None:
        turn = round(QUARTERS * TURNS * math.log2(previous + 1))
        if idle_s is not None:
            pause = round(QUARTERS * min(PAUSE_MAX, math.log2(idle_s + 1)))
    stem = model, rank, tenant, 2 * template + (turn is not None), round(SIZES * math.log2(prompt_tokens + 1))
    return stem, turn, pause, None if guess is None else max(0, round(QUARTERS * GUESSES * guess))


def turn_tokens(turn: int) -> float:
    """The length of the turns of a place."""
    return max(1.0, 2 ** (turn / (QUARTERS * TURNS)) - 1)


@lru_cache(1_024)
def around(place: int) -> Shares:
    """The bins on both sides of a value."""
    low, quarters = divmod(place, QUARTERS)
    if not quarters:
        return ((1.0, low),)
    below, above = (1.0 - quarters / QUARTERS, low), (quarters / QUARTERS, low + 1)
    return (below, above) if below > above else (above, below)


@lru_cache(1_024)
def turns_around(turn: int) -> Shares:
    """The bins around a turn."""
    return tuple([(share, _PAUSES * low) for share, low in around(turn)])


@lru_cache(8_192)
def pauses_around(turn: int, pause: int) -> Shares:
    """The bins around a turn and the pause after it."""
    return tuple([(share * part, number + 1 + low) for share, number in turns_around(turn) for part, low in around(pause)])


class Tenant(Lengths):
    """How long the answers of a model to a tenant were, and how far each level is trusted to foretell them.

    `odds` are the log odds that a level does better than what is more general, `trust` the chances that these come to, and
    `priors` the answers after which a level counts half: those of the sizes of prompts fall as their odds rise.
    """

    __slots__ = ("odds", "priors", "trust")

    def __init__(self, odds: list[float] | None = None) -> None:
        super().__init__()
        self.odds = [TRUST_START] * len(PRIORS) if odds is None else odds
        self.priors = [_prior(level, one) for level, one in enumerate(self.odds)]
        self.trust = [1.0, *[1.0 / (1.0 + math.exp(-one)) for one in self.odds[1:]]]  # there is nothing above the first

    def judge(self, level: int, gain: float, expected: float) -> float:
        """How far a level is trusted now that it raised the chance of an answer from `expected` by `gain`."""
        odds = self.odds[level]
        odds += (1.0 - TRUST_KEEP) * (TRUST_START - odds) + math.log1p(gain / (expected + _SMALL))
        if odds > TRUST_MAX:
            odds = TRUST_MAX
        elif odds < -TRUST_MAX:
            odds = -TRUST_MAX
        self.odds[level] = odds
        if FALLS[level]:
            self.priors[level] = _prior(level, odds)
        self.trust[level] = trust = 1.0 / (1.0 + math.exp(-odds))
        return trust


def _prior(level: int, odds: float) -> float:
    """The answers after which a level with these odds counts half."""
    return PRIORS[level] * math.exp(FALLS[level] * (TRUST_START - odds))


NOTHING: Final = Lengths()  # stands for a histogram that is not there
STRANGER: Final = Tenant()  # stands for a tenant of whom nothing is known; nothing is learned in either of them


class Bins(dict[int, Lengths]):
    """The histograms of bins that belong together, by their numbers; what is not known is `NOTHING`."""

    __slots__ = ("_kept", "_stem")

    def __init__(self, kept: Kept[Key, Lengths], stem: Key) -> None:
        super().__init__()
        self._kept = kept
        self._stem = stem

    def __missing__(self, number: int) -> Lengths:
        node = self._kept.find((*self._stem, _BIN, number))
        if node is None:
            node = self[number] = NOTHING
        return node

    def use(self, number: int) -> Lengths:
        """A histogram to learn in."""
        node = self.get(number, NOTHING)
        if node is NOTHING:
            node = self[number] = self._kept.use((*self._stem, _BIN, number), Lengths)
        return node


class Chain(NamedTuple):
    """The histograms that all requests have, from the general to the special; the tenant's among them; and the bins of turns."""

    nodes: tuple[Lengths, ...]
    tenant: Tenant
    turns: Bins


class Levels:
    """All histograms of a predictor."""

    __slots__ = ("_bins", "_chains", "nodes", "tenants")

    def __init__(self) -> None:
        self.nodes: Kept[Key, Lengths] = Kept(HISTOGRAMS_MAX)
        self.tenants: Kept[Key, Tenant] = Kept(HISTOGRAMS_MAX)
        self._chains: dict[Stem, Chain] = {}  # found once, since all that is in them was used of late
        self._bins: dict[Key, Bins] = {}

    def make_room(self) -> bool:
        """Before an answer is learned: whether something had to be forgotten for it."""
        if self.nodes.has_room(ANSWER_USES):
            return False
        self.nodes.age()
        self.tenants.age()
        self._chains.clear()
        self._bins.clear()
        return True

    def chain(self, stem: Stem) -> Chain:
        """The chain to foretell a request from."""
        chain = self._chains.get(stem)
        if chain is None:
            keys = _keys(stem)
            nodes = [self.nodes.find(key) or NOTHING for key in keys]
            nodes[TENANT] = tenant = self.tenants.find(keys[TENANT]) or STRANGER
            chain = Chain(tuple(nodes), tenant, self.bins(keys[TEMPLATE]))
        return chain

    def chain_to_learn(self, stem: Stem) -> Chain:
        """The chain to learn an answer in."""
        chain = self._chains.get(stem)
        if chain is None:
            keys = _keys(stem)
            tenant = self.tenants.use(keys[TENANT], Tenant)
            nodes = [tenant if level == TENANT else self.nodes.use(key, Lengths) for level, key in enumerate(keys)]
            chain = self._chains[stem] = Chain(tuple(nodes), tenant, self.bins_to_learn(keys[TEMPLATE]))
        return chain

    def templates(self) -> Iterator[tuple[str, str, int]]:
        """Model, tenant and template of the histograms of templates; what follows an answer counts as its template."""
        for key, _ in self.nodes.items():  # noqa: PERF102 - no dictionary
            model, tenant, template = key if len(key) == len(_TEMPLATE_KEY) else _TEMPLATE_KEY
            if isinstance(model, str) and isinstance(tenant, str) and isinstance(template, int) and template > 1:
                yield model, tenant, template >> 1

    def bins(self, stem: Key) -> Bins:
        """The bins of the turns of a template, or of the guesses for a model."""
        bins = self._bins.get(stem)
        return Bins(self.nodes, stem) if bins is None else bins

    def bins_to_learn(self, stem: Key) -> Bins:
        """The same, to learn answers in."""
        bins = self._bins[stem] = self.bins(stem)
        return bins


def _keys(stem: Stem) -> tuple[Key, ...]:
    """The keys of a chain."""
    model, rank, tenant, template, size = stem
    whole = model, tenant, template
    return (model,), (model, rank), (model, tenant), whole, (*whole, size >> 3), (*whole, size >> 3, size)
