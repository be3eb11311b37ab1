"""Which requests count as short, so that the fast lane is open to them.

What declares a small cap is short: it is held to that. What declares none is short if at least `HELD_MIN` of the last `SEEN`
answers of its tenant, model and template were. So nothing is short without a history, and who sends long requests after short ones
loses the lane until that many in a row of answers have been short again. Both prompt and output have their limits, the output
counting all choices.
"""

from fairlane.predict.asked import Asked
from fairlane.predict.kept import Kept

SEEN = 30  # answers that are remembered of each
HELD_MIN = 27  # of them short, for the next to count as short
KEYS_MAX = 8192

_ALL = (1 << SEEN) - 1

Key = tuple[str, str, int]


class _Answers:
    """The last answers of one key, a bit for each: 1 if it was short."""

    __slots__ = ("bits",)

    def __init__(self) -> None:
        self.bits = 0


class ShortRequests:
    """Tells short requests from others, and learns from answers. Memory is bounded."""

    def __init__(self, max_input: int, max_output: int) -> None:
        self.max_input = max_input
        self.max_output = max_output
        self._answers: Kept[Key, _Answers] = Kept(KEYS_MAX)

    def is_short(self, asked: Asked | None, prompt_tokens: int, cap: int | None, choices: int) -> bool:
        """Whether the lane is open to a request; `cap` is that of one choice, None without one."""
        if prompt_tokens > self.max_input:
            return False
        if cap is not None and cap * choices <= self.max_output:
            return True
        if asked is None:
            return False
        known = self._answers.find((asked.tenant, asked.model, asked.template))
        return known is not None and known.bits.bit_count() >= HELD_MIN

    def learn(self, asked: Asked | None, output_tokens: int) -> None:
        """An answer of so many tokens in all is complete."""
        if asked is None:
            return
        known = self._answers.use((asked.tenant, asked.model, asked.template), _Answers)
        known.bits = (known.bits << 1 | (output_tokens <= self.max_output)) & _ALL
