"""How fast work is served, measured over the time in which there was a backlog.

An average over wall time would measure demand: after a quiet hour it would refuse the first burst of the morning. So a
clock runs only while something waits, and a finished request counts with the part of its run that this clock saw.
Older work fades with a half-life of `HALF_LIFE` finished requests; idleness changes nothing.
"""

from math import exp

MIN_COMPLETIONS = 20  # below, no rate is known
HALF_LIFE = 100.0  # finished requests
_FADE = 0.5 ** (1.0 / HALF_LIFE)
TTFT_FADE = 0.98  # of older observations, at each new one
TTFT_UP, TTFT_DOWN = exp(0.05), exp(-0.05)  # steps of γ
SAMPLES_MIN = 10  # observations below which nothing is said


class ServiceRate:
    """Cost per second while backlogged, of a pool or of one class of it."""

    def __init__(self, now: float) -> None:
        self.backlogged = False  # the busy clock runs
        self._since = now
        self._busy_s = 0.0  # the busy clock at `_since`
        self._counted_s = 0.0  # the busy clock when last something finished
        self._cost = self._seconds = 0.0
        self.completions = 0

    def set_backlogged(self, backlogged: bool, now: float) -> None:  # noqa: FBT001 - it is the state itself
        """Starts or stops the busy clock."""
        if backlogged != self.backlogged:
            self._busy_s = self.busy_s(now)
            self._since = now
            self.backlogged = backlogged

    def busy_s(self, now: float) -> float:
        """The busy clock: seconds with a backlog until now."""
        return self._busy_s + (now - self._since if self.backlogged else 0.0)

    def served(self, cost: int, busy_at_start: float, run_s: float, now: float) -> None:
        """Counts a finished request that ran `run_s` seconds and began at the reading `busy_at_start`."""
        busy = self.busy_s(now)
        part = min(1.0, (busy - busy_at_start) / run_s) if run_s > 0 else 0.0
        if part <= 0.0:
            return
        self._cost = self._cost * _FADE + cost * part
        self._seconds = self._seconds * _FADE + (busy - self._counted_s)
        self._counted_s = busy
        self.completions += 1

    def failed(self, now: float) -> None:
        """What an engine failed at says nothing of how fast it serves: the time since the last end is not counted."""
        self._counted_s = self.busy_s(now)

    def per_s(self, now: float) -> float | None:
        """Cost per busy second, or None before `MIN_COMPLETIONS`. Falls while nothing finishes."""
        seconds = self._seconds + self.busy_s(now) - self._counted_s
        if self.completions < MIN_COMPLETIONS or seconds <= 0.0:
            return None
        return self._cost / seconds


class Shadow:
    """Cost that was refused and is expected back; it is worked off at the rate at which its class is served."""

    def __init__(self, now: float) -> None:
        self._cost = 0.0
        self._at = now

    def add(self, cost: float, per_s: float, now: float) -> float:
        """Counts refused cost, and returns what was expected back before it."""
        before = max(0.0, self._cost - per_s * (now - self._at))
        self._cost = before + cost
        self._at = now
        return before


class FirstTokenTime:
    """When a request that starts now will have its first token, learned from those that started before. For one pool.

    An engine prefills prompts one after another, so the time grows with the prompt tokens that are ahead, the request's own
    included, and it runs from the moment the engine began with the first of them: what is prefilled since then is done. A
    line through (tokens, seconds) is fitted with fading weights; a factor γ on top moves by a fixed step towards the median
    of actual over fitted time. Without that, requests are shed that would have been in time.
    """

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0
        self._samples = 0
        self._gamma = 1.0
        self._mean_tokens = self._mean_s = self._slope = 0.0

    def seconds(self, tokens: int) -> float:
        """The median estimate; 0.0 as long as too little was seen."""
        if self._samples < SAMPLES_MIN:
            return 0.0
        return self._gamma * max(0.0, self._mean_s + self._slope * (tokens - self._mean_tokens))

    def tokens(self, seconds: float) -> int | None:
        """How many prompt tokens are prefilled in that time, two usual loads at least; None as long as too little is known."""
        if self._samples < SAMPLES_MIN or self._slope <= 0.0:
            return None
        return int(max(seconds / (self._gamma * self._slope), 2 * self._mean_tokens))

    def observe(self, tokens: int, seconds: float) -> None:
        """A request had its first token after so many seconds, with so many prompt tokens until then."""
        if self._samples >= SAMPLES_MIN:
            self._gamma *= TTFT_UP if seconds > self.seconds(tokens) else TTFT_DOWN
            self._gamma = min(max(self._gamma, 0.1), 10.0)
        self._samples += 1
        self._n, self._x, self._y = n, x, y = self._n * TTFT_FADE + 1.0, self._x * TTFT_FADE + tokens, self._y * TTFT_FADE + seconds
        self._xx, self._xy = self._xx * TTFT_FADE + tokens * tokens, self._xy * TTFT_FADE + tokens * seconds
        self._mean_tokens, self._mean_s = mean_x, mean_y = x / n, y / n
        spread = self._xx / n - mean_x * mean_x
        self._slope = max(0.0, (self._xy / n - mean_x * mean_y) / spread) if spread > 0.0 else 0.0
