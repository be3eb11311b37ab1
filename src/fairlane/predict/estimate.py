"""How many tokens a request will use: from the size of its prompt, and from how long the answers to similar ones were.

Tokens of text are estimated as `ascii / 4 + 0.7 * cjk + 0.5 * other` characters, because one weight for all scripts is
several times too low on Chinese. The sum is multiplied by a factor that each (tenant, model) learns from the usage
which engines report: tokenizers, languages and chat templates differ, and a tenant's requests resemble each other.
Token ids are exact; images and other media count an amount that whoever measures the prompt decides.
"""

import math
from typing import NamedTuple

from fairlane.core.values import Usage
from fairlane.predict.asked import Asked, Prediction
from fairlane.predict.kept import Kept
from fairlane.predict.predictor import LengthModel, Predictor

FACTORS_MAX = 10_000  # kept of tenants, and as many of models: about 2 MB each
TEMPLATES_MAX = 10_000  # that are counted: about 2 MB
TEMPLATE_ANSWERS = 5  # after which a template has histograms of its own: where each request has another, none is worth any
ANSWERS_MIN = 5  # of a tenant and model, after which their lengths say more than the cap
SETTLED = 100  # answers of a tenant and model, after which not every one of many needs to be learned
FACTOR_MAX = 4.0  # the learned factor stays between its reciprocal and this
FACTOR_PRIOR = 5  # a tenant's factor counts as much as its model's after that many answers
FACTOR_GAIN_MIN = 1 / 8
FACTOR_ERROR_MAX = 0.1  # the most, in logarithms, that one answer of a settled history can say

_LOG_FACTOR_MAX = math.log(FACTOR_MAX)
_NOT_ASCII = bytes(range(0x80, 0x100))
# High bytes of the UTF-16 blocks of Hangul, kana, ideographs, their punctuation and full-width forms. Ideographs
# beyond the first plane share high bytes with emoji and count as other characters.
_CJK = {0x11, *range(0x2E, 0xA0), *range(0xAC, 0xD8), 0xF9, 0xFA, 0xFF}
_NOT_CJK = bytes(byte for byte in range(0x100) if byte not in _CJK)


class PromptSize(NamedTuple):
    """A prompt in the units that tokens are estimated from: characters by script, token ids, and tokens of other parts."""

    ascii: int
    cjk: int = 0
    other: int = 0
    ids: int = 0
    extra: int = 0

    @staticmethod
    def of(text: str, *, markup: int = 0, extra: int = 0) -> "PromptSize":
        """Measure a text with so many characters of markup. Time is linear whatever the mixture: nothing loops over characters."""
        if text.isascii():
            return PromptSize(len(text) + markup, 0, 0, 0, extra)
        plain = len(text.encode("utf-8", "surrogatepass").translate(None, _NOT_ASCII))
        cjk = len(text.encode("utf-16-le", "surrogatepass")[1::2].translate(None, _NOT_CJK))
        return PromptSize(plain + markup, cjk, len(text) - plain - cjk, 0, extra)

    @property
    def text_tokens(self) -> float:
        """Tokens of the text alone, before any factor is learned."""
        plain, cjk, other, _, _ = self
        return plain / 4 + 0.7 * cjk + 0.5 * other if cjk or other else plain / 4


class Estimate(NamedTuple):
    """What a request is expected to use, in tokens. `max_tokens` is the most it may hold: its prompt and the caps of its choices.

    `limit_tokens` is what rate limits are charged at first: the expectation, or `max_tokens` as long as nothing is known.
    `cap`, `asked` and `prediction` are of one choice; the last two are None where no output is generated. `template` is the
    request's own, also where too little is known of it to ask for it.
    """

    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    choices: int = 1
    limit_tokens: int = 0
    cap: int | None = None
    asked: Asked | None = None
    prediction: Prediction | None = None
    template: int = 0


class Factor:
    """A running centre of log(real / estimated) tokens.

    Errors are cut off, so it lies near the median and no single answer moves a settled history far. The cut and the
    gain start wide and narrow with the first answers, so it settles at once.
    """

    __slots__ = ("due_at", "log", "samples")

    def __init__(self, log: float = 0.0, samples: int = 0) -> None:
        self.log = log
        self.samples = samples
        self.due_at = 0.0  # answers before that time need not be learned

    def learn(self, log_ratio: float) -> None:
        """Take note of one answer."""
        self.samples += 1
        most = max(FACTOR_ERROR_MAX, _LOG_FACTOR_MAX / self.samples)
        error = max(-most, min(most, log_ratio - self.log))
        self.log += error * max(FACTOR_GAIN_MIN, 1 / self.samples)


class Sightings:
    """How many answers of a template were seen."""

    __slots__ = ("answers",)

    def __init__(self) -> None:
        self.answers = 0


class Estimator:
    """Estimates requests and learns from their usage. Deterministic; memory is bounded, the longest unused is forgotten.

    Of a tenant and model whose answers come faster than one in `gap_s` seconds, and of which enough is known, one in that
    time is learned: hundreds a second say no more than some of them.
    """

    __slots__ = ("_gap_s", "lengths", "models", "templates", "tenants")

    def __init__(self, lengths: LengthModel | None = None, *, gap_s: float = 0.0) -> None:
        self._gap_s = gap_s
        self.lengths: LengthModel = Predictor() if lengths is None else lengths
        self.tenants: Kept[tuple[str, str], Factor] = Kept(FACTORS_MAX)
        self.models: Kept[str, Factor] = Kept(FACTORS_MAX)
        self.templates: Kept[tuple[str, str, int], Sightings] = Kept(TEMPLATES_MAX)

    def estimate(
        self,
        tenant: str,
        model: str,
        prompt: PromptSize,
        cap: int | None,
        choices: int,
        *,
        rank: int = 0,
        template: int = 0,
        previous: int | None = None,
        idle_s: float | None = None,
        hints: tuple[float, ...] = (),
    ) -> Estimate:
        """Expect at least one token of prompt and, unless `cap` is 0 as for embeddings, one of output per choice.

        `cap` is the most tokens of a choice, None without one. What follows `choices` is described at `Asked`.
        """
        text = prompt.text_tokens * self._factor(tenant, model)
        prompt_tokens = max(1, math.ceil(text) + prompt.ids + prompt.extra)
        if cap == 0:
            return Estimate(prompt_tokens, 0, prompt_tokens, choices, prompt_tokens, cap)
        heard = template if template and self._is_known(tenant, model, template) else 0
        asked = Asked(tenant, model, rank, heard, max(1, prompt_tokens // choices), previous, idle_s, hints)
        said = self.lengths.predict(asked, cap)
        output_tokens = said.mean * choices
        most = output_tokens if cap is None else cap * choices
        reserved = output_tokens if said.answers >= ANSWERS_MIN else most
        limit_tokens = prompt_tokens + reserved
        return Estimate(prompt_tokens, output_tokens, prompt_tokens + most, choices, limit_tokens, cap, asked, said, template)

    def learn(
        self, tenant: str, model: str, prompt: PromptSize, estimate: Estimate, usage: Usage, *, complete: bool, now: float = 0.0
    ) -> None:
        """Take note of a finished request. One that was cancelled or failed says nothing of how long its answer would have been.

        Old answers fade with their number and, where `now` is given, with time: seconds that never fall.
        """
        if not complete:
            return
        own = self.tenants.use((tenant, model), Factor)
        if now < own.due_at and own.samples >= SETTLED:
            return
        own.due_at = now + self._gap_s
        log_ratio = _log_ratio(prompt, usage.prompt_tokens)
        if log_ratio is not None:
            own.learn(log_ratio)
            self.models.use(model, Factor).learn(log_ratio)
        if estimate.template:
            self.templates.use((tenant, model, estimate.template), Sightings).answers += 1
        if estimate.asked is not None and estimate.prediction is not None:
            tokens = round(usage.output_tokens / estimate.choices)
            self.lengths.learn(estimate.asked, estimate.cap, estimate.prediction, tokens, now)

    def _is_known(self, tenant: str, model: str, template: int) -> bool:
        seen = self.templates.find((tenant, model, template))
        return seen is not None and seen.answers >= TEMPLATE_ANSWERS

    def _factor(self, tenant: str, model: str) -> float:
        """The tenant's own factor, mixed with its model's by how much is known of the tenant."""
        shared = self.models.find(model)
        if shared is None:
            return 1.0
        own = self.tenants.find((tenant, model))
        if own is None:
            return math.exp(shared.log)
        return math.exp((own.log * own.samples + shared.log * FACTOR_PRIOR) / (own.samples + FACTOR_PRIOR))


def _log_ratio(prompt: PromptSize, prompt_tokens: int) -> float | None:
    """How far off the text's estimate was; None where it cannot be told from the rest of the prompt."""
    text_tokens = prompt_tokens - prompt.ids
    if prompt.extra or text_tokens < 1 or prompt.text_tokens <= 0:
        return None
    return max(-_LOG_FACTOR_MAX, min(_LOG_FACTOR_MAX, math.log(text_tokens / prompt.text_tokens)))
