"""What the scheduler is told of the length of an answer before it is there."""

from __future__ import annotations

import random
from enum import StrEnum

from fairlane.predict.asked import Asked, Prediction
from fairlane.predict.predictor import Predictor

MODEL = "m"
BLIND_TOKENS = 256


class Forecast(StrEnum):
    """Where predictions come from."""

    LEARNED = "learned"  # the production predictor, from the answers of this run
    ORACLE = "oracle"  # the true length
    BLIND = "blind"  # the same for all


class Forecaster:
    """Predictions of one run. `error` spoils each by a factor between its reciprocal and itself, both ways alike."""

    def __init__(self, kind: Forecast, error: float, rng: random.Random) -> None:
        self._kind = kind
        self._error = error
        self._rng = rng
        self._predictor = Predictor()

    def predict(self, asked: Asked, truth: int) -> Prediction:
        """The prediction for a request whose answer will have `truth` tokens."""
        if self._kind is Forecast.LEARNED:
            said = self._predictor.predict(asked)
        else:
            tokens = truth if self._kind is Forecast.ORACLE else BLIND_TOKENS
            said = Prediction(tokens, tokens, tokens, float(tokens))
        if self._error == 1.0:
            return said
        factor = self._error ** self._rng.uniform(-1.0, 1.0)
        mean, upper, order = (max(1, round(tokens * factor)) for tokens in said[:3])
        return said._replace(mean=mean, upper=upper, order=order)

    def learn(self, asked: Asked, prediction: Prediction, tokens: int, now: float) -> None:
        """An answer is complete."""
        if self._kind is Forecast.LEARNED:
            self._predictor.learn(asked, None, prediction, tokens, now)
