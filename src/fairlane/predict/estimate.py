"""How many tokens a request will use: from the size of its prompt, and from what its tenant's requests used before.

Tokens of text are estimated as `ascii / 4 + 0.7 * cjk + 0.5 * other` characters, because one weight for all scripts is
several times too low on Chinese. The sum is multiplied by a factor that each (tenant, model) learns from the usage
which engines report: tokenizers, languages and chat templates differ, and a tenant's requests resemble each other.
Token ids are exact; images and other media count an amount that whoever measures the prompt decides.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeVar

from fairlane.core.values import Usage

KEYS_MAX = 10_000  # histories kept for tenants, and as many for models: about 3 MB each
OUTPUT_UNKNOWN = 256  # tokens of an answer without a cap and without a history
OUTPUT_SAMPLES_MIN = 5  # answers after which their mean says more than the cap
OUTPUT_GAIN_MIN = 1 - 0.5 ** (1 / 500)  # an answer's part in the mean halves with every 500 later ones
FACTOR_MAX = 4.0  # the learned factor stays between its reciprocal and this
FACTOR_PRIOR = 5  # a tenant's factor counts as much as its model's after that many answers
FACTOR_GAIN_MIN = 1 / 8
FACTOR_ERROR_MAX = 0.1  # the most, in logarithms, that one answer of a settled history can say

_K = TypeVar("_K")
_V = TypeVar("_V")
_LOG_FACTOR_MAX = math.log(FACTOR_MAX)
_NOT_ASCII = bytes(range(0x80, 0x100))
# High bytes of the UTF-16 blocks of Hangul, kana, ideographs, their punctuation and full-width forms. Ideographs
# beyond the first plane share high bytes with emoji and count as other characters.
_CJK = {0x11, *range(0x2E, 0xA0), *range(0xAC, 0xD8), 0xF9, 0xFA, 0xFF}
_NOT_CJK = bytes(byte for byte in range(0x100) if byte not in _CJK)


@dataclass(frozen=True, slots=True)
class PromptSize:
    """A prompt in the units that tokens are estimated from: characters by script, token ids, and tokens of other parts."""

    ascii: int
    cjk: int = 0
    other: int = 0
    ids: int = 0
    extra: int = 0

    @staticmethod
    def of(text: str, *, ids: int = 0, extra: int = 0) -> "PromptSize":
        """Measure a text. Time is linear with a small constant whatever the mixture: nothing loops over characters."""
        if text.isascii():
            return PromptSize(len(text), 0, 0, ids, extra)
        plain = len(text.encode("utf-8", "surrogatepass").translate(None, _NOT_ASCII))
        cjk = len(text.encode("utf-16-le", "surrogatepass")[1::2].translate(None, _NOT_CJK))
        return PromptSize(plain, cjk, len(text) - plain - cjk, ids, extra)

    @property
    def text_tokens(self) -> float:
        """Tokens of the text alone, before any factor is learned."""
        return self.ascii / 4 + 0.7 * self.cjk + 0.5 * self.other


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a request is expected to use. `max_tokens` is the most it may hold: its prompt and the caps of its choices.

    `limit_tokens` is what rate limits are charged at first: the expectation, or `max_tokens` as long as nothing is known.
    """

    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    choices: int = 1
    limit_tokens: int = 0


@dataclass(slots=True)
class _Factor:
    """A running centre of log(real / estimated) tokens.

    Errors are cut off, so it lies near the median and no single answer moves a settled history far. The cut and the
    gain start wide and narrow with the first answers, so it settles at once.
    """

    log: float = 0.0
    samples: int = 0

    def learn(self, log_ratio: float) -> None:
        self.samples += 1
        most = max(FACTOR_ERROR_MAX, _LOG_FACTOR_MAX / self.samples)
        error = max(-most, min(most, log_ratio - self.log))
        self.log += error * max(FACTOR_GAIN_MIN, 1 / self.samples)


@dataclass(slots=True)
class _Mean:
    """A running mean of the tokens of a choice, in which old answers fade."""

    value: float = 0.0
    samples: int = 0

    def learn(self, tokens: float) -> None:
        self.samples += 1
        self.value += (tokens - self.value) * max(OUTPUT_GAIN_MIN, 1 / self.samples)


@dataclass(slots=True)
class _History:
    """What the answers of one (tenant, model) taught."""

    factor: _Factor = field(default_factory=_Factor)
    output: _Mean = field(default_factory=_Mean)


class Estimator:
    """Estimates requests and learns from their usage. Deterministic; memory is bounded, the longest unused is forgotten."""

    __slots__ = ("_histories", "_models")

    def __init__(self) -> None:
        self._histories: OrderedDict[tuple[str, str], _History] = OrderedDict()
        self._models: OrderedDict[str, _Factor] = OrderedDict()

    def estimate(self, tenant: str, model: str, prompt: PromptSize, cap: int | None, choices: int) -> Estimate:
        """Expect at least one token of prompt and, unless `cap` is 0 as for embeddings, one of output per choice."""
        history = self._histories.get((tenant, model))
        text = prompt.text_tokens * self._factor(history, model)
        prompt_tokens = max(1, math.ceil(text) + prompt.ids + prompt.extra)
        output_tokens = _output(history, cap) * choices
        most = output_tokens if cap is None else cap * choices
        reserved = output_tokens if _is_known(history) else most
        return Estimate(prompt_tokens, output_tokens, prompt_tokens + most, choices, prompt_tokens + reserved)

    def learn(self, tenant: str, model: str, prompt: PromptSize, estimate: Estimate, usage: Usage, *, complete: bool) -> None:
        """Take note of a finished request. An answer that was cut off says how long it was not, so it teaches nothing."""
        if not complete:
            return
        history = _touch(self._histories, (tenant, model), _History)
        log_ratio = _log_ratio(prompt, usage.prompt_tokens)
        if log_ratio is not None:
            history.factor.learn(log_ratio)
            _touch(self._models, model, _Factor).learn(log_ratio)
        if estimate.output_tokens:
            history.output.learn(usage.output_tokens / estimate.choices)

    def _factor(self, history: _History | None, model: str) -> float:
        """The tenant's own factor, mixed with its model's by how much is known of the tenant."""
        shared = self._models.get(model)
        if shared is None:
            return 1.0
        if history is None:
            return math.exp(shared.log)
        own = history.factor
        return math.exp((own.log * own.samples + shared.log * FACTOR_PRIOR) / (own.samples + FACTOR_PRIOR))


def _is_known(history: _History | None) -> bool:
    return history is not None and history.output.samples >= OUTPUT_SAMPLES_MIN


def _output(history: _History | None, cap: int | None) -> int:
    """Expected tokens of one choice. A cap alone says little: clients set it high and stop early."""
    known = history is not None and _is_known(history)
    expected = max(1, math.ceil(history.output.value)) if known and history is not None else OUTPUT_UNKNOWN
    return expected if cap is None else min(cap, expected)


def _log_ratio(prompt: PromptSize, prompt_tokens: int) -> float | None:
    """How far off the text's estimate was; None where it cannot be told from the rest of the prompt."""
    text_tokens = prompt_tokens - prompt.ids
    if prompt.extra or text_tokens < 1 or prompt.text_tokens <= 0:
        return None
    return max(-_LOG_FACTOR_MAX, min(_LOG_FACTOR_MAX, math.log(text_tokens / prompt.text_tokens)))


def _touch(kept: OrderedDict[_K, _V], key: _K, make: type[_V]) -> _V:
    """The entry of a key as the most recently used, made where there is none and at the cost of the least used."""
    value = kept.get(key)
    if value is not None:
        kept.move_to_end(key)
        return value
    if len(kept) >= KEYS_MAX:
        kept.popitem(last=False)
    value = kept[key] = make()
    return value
