"""What is asked of a predictor of lengths, and what it says."""

from typing import NamedTuple


class Asked(NamedTuple):
    """What is known of a request that the length of its answer may depend on."""

    tenant: str
    model: str
    rank: int = 0  # of the class
    template: int = 0  # a hash of system prompt, endpoint, response format and tools
    prompt_tokens: int = 1
    previous: int | None = None  # tokens of the last answer in the same conversation
    idle_s: float | None = None  # seconds since that
    hints: tuple[float, ...] = ()  # what only a trained model reads
    guess: float | None = None  # of a trained model, as the logarithm of tokens to base 2


class Prediction(NamedTuple):
    """The mean, the length that a tenth of answers exceed, and the tail-inflated mean to order by: in tokens, from 1 to the cap.

    `uncapped` is the second before it is capped, which calibration has to know; `answers` is how many of this tenant and
    model were learned. `rivals` are what a trained model chose from: the prediction without its guess, that with it, the guess.
    """

    mean: int
    upper: int
    order: int
    uncapped: float
    answers: int = 0
    rivals: "tuple[Prediction, Prediction, float] | None" = None
