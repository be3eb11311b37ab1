"""How long engines take to the first token, learned from what they did."""

from math import exp

FADE = 0.98  # of older observations, at each new one
UP, DOWN = exp(0.05), exp(-0.05)  # steps of γ
SAMPLES_MIN = 10  # observations below which nothing is said


class FirstTokenTime:
    """When a request that starts now will have its first token, learned from those that started before.

    An engine prefills prompts one after another, so the time grows with the prompt tokens that are ahead, the request's own
    included, and it runs from the moment the engine began with the first of them: what is prefilled since then is done. A
    line through (tokens, seconds) is fitted with fading weights; a factor γ on top moves by a fixed step towards the median
    of actual over fitted time. Without that, requests are shed that would have been in time.
    """

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0
        self.samples = 0
        self._gamma = 1.0
        self._mean_tokens = self._mean_s = self._slope = 0.0

    def seconds(self, tokens: int) -> float:
        """The median estimate; 0.0 as long as too little was seen."""
        if self.samples < SAMPLES_MIN:
            return 0.0
        return self._gamma * max(0.0, self._mean_s + self._slope * (tokens - self._mean_tokens))

    def tokens(self, seconds: float) -> int | None:
        """How many prompt tokens are prefilled in that time, two usual loads at least; None as long as too little is known."""
        if self.samples < SAMPLES_MIN or self._slope <= 0.0:
            return None
        return int(max(seconds / (self._gamma * self._slope), 2 * self._mean_tokens))

    def observe(self, tokens: int, seconds: float) -> None:
        """A request had its first token after so many seconds, with so many prompt tokens until then."""
        if self.samples >= SAMPLES_MIN:
            self._gamma *= UP if seconds > self.seconds(tokens) else DOWN
            self._gamma = min(max(self._gamma, 0.1), 10.0)
        self.samples += 1
        self._n, self._x, self._y = n, x, y = self._n * FADE + 1.0, self._x * FADE + tokens, self._y * FADE + seconds
        self._xx, self._xy = self._xx * FADE + tokens * tokens, self._xy * FADE + tokens * seconds
        self._mean_tokens, self._mean_s = mean_x, mean_y = x / n, y / n
        spread = self._xx / n - mean_x * mean_x
        self._slope = max(0.0, (self._xy / n - mean_x * mean_y) / spread) if spread > 0.0 else 0.0
