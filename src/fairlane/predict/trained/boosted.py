"""The histograms with a trained model beside them, which is heard only while it helps.

The trees guess the logarithm of an answer's length from what is known of the request and from what the histograms say. The
guess is one more level of the histograms, so that it is as well calibrated as they are, knows its own error, and a drift of
the traffic wears off. Both predictions are made for each request, with the guess and without; the one with it is given while
the pinball loss of its upper lengths over the last answers is the lower. Until enough were compared it is not.
"""

import math
from collections import deque
from typing import Final

from fairlane.predict.asked import Asked, Prediction
from fairlane.predict.histogram import Mixture
from fairlane.predict.kept import Kept
from fairlane.predict.levels import Tenant
from fairlane.predict.predictor import UPPER_SHARE, Predictor
from fairlane.predict.trained.hints import NAMES as HINTS
from fairlane.predict.trained.trees import Trees

COMPARED = 1_000  # last answers of a model that decide
COMPARED_MIN = 100
CONTESTS_MAX = 1_000  # models whose answers are compared
FEATURES: Final = ("prompt", "cap", "previous", "idle", "mean", "half", "upper", "short", "tenant_mean", "tenant_answers", *HINTS)
SHORT_TOKENS = 256  # an answer of at most so many is short
UNKNOWN = -1.0  # in place of a feature that a request does not have; all others are at least zero

_NO_HINTS = (0.0,) * len(HINTS)


class Boosted:
    """Predicts with the guess or without it, whichever did better. Deterministic; memory is bounded."""

    __slots__ = ("_contests", "histograms", "trees")

    def __init__(self, trees: Trees, histograms: Predictor) -> None:
        self.trees = trees
        self.histograms = histograms
        self._contests: Kept[str, _Contest] = Kept(CONTESTS_MAX)

    def predict(self, asked: Asked, cap: int | None = None, produced: int = 0) -> Prediction:
        """Expect an answer's length, of which `produced` tokens are there already."""
        histograms = self.histograms
        mixture = histograms.mixture(asked)
        plain = histograms.judge(mixture, asked, cap, produced)
        guess = self.trees.sum(features(histograms.tenant(asked), mixture, asked, cap))
        asked = asked._replace(guess=guess)
        guessed = histograms.judge(histograms.refine(mixture, asked), asked, cap, produced)
        return (guessed if self.is_live(asked.model) else plain)._replace(rivals=(plain, guessed, guess))

    def mixture(self, asked: Asked, cap: int | None = None) -> Mixture:
        """The distribution that a prediction rests on, before cap and calibration."""
        mixture = self.histograms.mixture(asked)
        if not self.is_live(asked.model):
            return mixture
        guess = self.trees.sum(features(self.histograms.tenant(asked), mixture, asked, cap))
        return self.histograms.refine(mixture, asked._replace(guess=guess))

    def learn(self, asked: Asked, cap: int | None, prediction: Prediction, tokens: int, now: float) -> None:
        """Take note of how long an answer was, and of which prediction came nearer."""
        if prediction.rivals is None:
            self.histograms.learn(asked, cap, prediction, tokens, now)
            return
        plain, guessed, guess = prediction.rivals
        self._contests.use(asked.model, _Contest).note(_loss(plain.upper, tokens), _loss(guessed.upper, tokens))
        self.histograms.calibrate(asked, cap, plain, tokens)
        self.histograms.learn(asked._replace(guess=guess), cap, guessed, tokens, now)

    def is_live(self, model: str) -> bool:
        """Whether the guesses for a model are heard."""
        contest = self._contests.find(model)
        return contest is not None and contest.is_won


class _Contest:
    """By how much guesses were better over the last answers, in tenths of tokens: exact, since these are whole."""

    __slots__ = ("_ahead", "_differences")

    def __init__(self) -> None:
        self._differences: deque[int] = deque()
        self._ahead = 0

    def note(self, plain: int, guessed: int) -> None:
        """Take note of the losses of both."""
        if len(self._differences) == COMPARED:
            self._ahead -= self._differences.popleft()
        self._differences.append(plain - guessed)
        self._ahead += plain - guessed

    @property
    def is_won(self) -> bool:
        """Whether guesses were better, and often enough compared."""
        return self._ahead > 0 and len(self._differences) >= COMPARED_MIN


def features(tenant: Tenant, mixture: Mixture, asked: Asked, cap: int | None) -> tuple[float, ...]:
    """What the trees see, in the order of `FEATURES`: all but `short` and the hints as log2(1 + value)."""
    return (
        math.log2(1 + asked.prompt_tokens),
        UNKNOWN if cap is None else math.log2(1 + cap),
        UNKNOWN if asked.previous is None else math.log2(1 + asked.previous),
        UNKNOWN if asked.idle_s is None else math.log2(1.0 + asked.idle_s),
        math.log2(1.0 + mixture.mean()),
        math.log2(1.0 + mixture.quantile(0.5)),
        math.log2(1.0 + mixture.quantile(UPPER_SHARE)),
        mixture.up_to(SHORT_TOKENS)[0],
        math.log2(1.0 + sum(tenant.sums) / tenant.mass) if tenant.mass else UNKNOWN,
        math.log2(1.0 + tenant.evidence) if tenant.mass else UNKNOWN,
        *(asked.hints or _NO_HINTS),
    )


def _loss(upper: int, tokens: int) -> int:
    """The pinball loss in tenths of tokens: what lies above the 0.9 quantile costs nine times what lies below."""
    return 9 * (tokens - upper) if tokens > upper else upper - tokens
