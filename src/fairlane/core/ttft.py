"""When a request that starts now will have its first token, learned from those that started before.

An engine prefills prompts one after another, so the time grows with the prompt tokens that are ahead, the request's own
included. A line through (tokens, seconds) is fitted with fading weights; a factor γ on top moves by a fixed step towards the
median of actual over fitted time. Without that calibration, requests are shed that would have been in time.
"""

from math import exp

FADE = 0.98  # of older observations, at each new one
STEP = 0.05  # of ln γ
SAMPLES_MIN = 10  # observations below which nothing is said


class FirstTokenTime:
    """Estimates for one pool. Seconds from start to first token, by prompt tokens to be prefilled until then."""

    __slots__ = ("_gamma", "_n", "_samples", "_x", "_xx", "_xy", "_y")

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0
        self._samples = 0
        self._gamma = 1.0

    def seconds(self, tokens: int) -> float:
        """The median estimate; 0.0 as long as too little was seen."""
        return self._gamma * self._line(tokens) if self._samples >= SAMPLES_MIN else 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """A request had its first token after so many seconds, with so many prompt tokens until then."""
        if self._samples >= SAMPLES_MIN:
            self._gamma *= exp(STEP if seconds > self.seconds(tokens) else -STEP)
            self._gamma = min(max(self._gamma, 0.1), 10.0)
        self._samples += 1
        self._n = self._n * FADE + 1.0
        self._x = self._x * FADE + tokens
        self._y = self._y * FADE + seconds
        self._xx = self._xx * FADE + tokens * tokens
        self._xy = self._xy * FADE + tokens * seconds

    def _line(self, tokens: int) -> float:
        mean_x, mean_y = self._x / self._n, self._y / self._n
        spread = self._xx / self._n - mean_x * mean_x
        slope = max(0.0, (self._xy / self._n - mean_x * mean_y) / spread) if spread > 0.0 else 0.0
        return max(0.0, mean_y + slope * (tokens - mean_x))
