"""Estimates of tokens: the measure of prompts, what histories teach, and the bounds of both."""

import math
import random
import re
import statistics
import zlib
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.core.values import Usage
from fairlane.predict import estimate as module
from fairlane.predict.estimate import SETTLED, Estimate, Estimator, Factor, PromptSize

ENGLISH = ["the", "quick", "service", "answers", "many", "long", "requests", "while", "a", "queue", "understands", "scheduling"]
CODE = [
    "for index in range(total_count):\n    ",
    "self._queue.append(item)\n",
    "if value is None:\n        return []\n",
    "x += 1; ",
    "// end }\n",
]
CHINESE = "请求在队列里等待调度器决定下一个运行的任务每个租户都有自己的权重和限制模型生成文字需要时间"
PIECE = re.compile(r" ?[A-Za-z]+|\d{1,3}|[\u4e00-\u9fff]+|\s+|[^\w\s]|_")
TEMPLATE_TOKENS = 20


def tokens(text: str) -> int:
    """A plausible byte-pair tokenizer: words of up to seven letters are one token, some pairs of ideographs merge."""
    count = TEMPLATE_TOKENS
    for piece in PIECE.findall(text):
        if "\u4e00" <= piece[0] <= "\u9fff":
            at = 0
            while at < len(piece):
                at += 2 if zlib.crc32(piece[at : at + 2].encode()) % 5 < 2 else 1
                count += 1
        else:
            count += 1 + (len(piece.strip()) - 1) // 7 if piece.strip() else 1
    return count


def english(random_: random.Random) -> str:
    return " ".join(random_.choices(ENGLISH, k=random_.randint(30, 600))) + "."


def code(random_: random.Random) -> str:
    return "".join(random_.choices(CODE, k=random_.randint(10, 200)))


def chinese(random_: random.Random) -> str:
    return "".join(random_.choices(CHINESE, k=random_.randint(60, 1500))) + "。"


def teach(estimator: Estimator, tenant: str, texts: Iterator[str]) -> list[float]:
    """Let the estimator see requests one by one; the relative error of each estimate, made before it learns."""
    errors = []
    for text in texts:
        prompt, real = PromptSize.of(text), tokens(text)
        guess = estimator.estimate(tenant, "m", prompt, None, 1)
        errors.append(abs(guess.prompt_tokens - real) / real)
        estimator.learn(tenant, "m", prompt, guess, Usage(real, 10), complete=True)
    return errors


def answers(estimator: Estimator, outputs: list[int], *, tenant: str = "a", cap: int | None = None, choices: int = 1) -> None:
    prompt = PromptSize.of("x" * 400)
    for output in outputs:
        guess = estimator.estimate(tenant, "m", prompt, cap, choices)
        estimator.learn(tenant, "m", prompt, guess, Usage(100, output), complete=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", (0, 0, 0)),
        ("Hello, world", (12, 0, 0)),
        ("你好，世界。", (0, 6, 0)),
        ("ひらがなカタカナ", (0, 8, 0)),
        ("한국어", (0, 3, 0)),
        ("naïve café", (8, 0, 2)),
        ("Привет", (0, 0, 6)),
        ("ok 👍🏽", (3, 0, 2)),
        ("a中б\ud800", (1, 1, 2)),
    ],
)
def test_characters_are_counted_by_script(text: str, expected: tuple[int, int, int]) -> None:
    """Each character is counted once, under its script, and a lone surrogate does no harm."""
    plain, cjk, other = expected
    assert PromptSize.of(text, markup=3, extra=4) == PromptSize(plain + 3, cjk, other, 0, 4)


@given(st.text(st.characters(codec=None)))
def test_every_character_counts_once(text: str) -> None:
    """The counts of the three scripts add up to the length of the text."""
    size = PromptSize.of(text)
    assert size.ascii == sum(character.isascii() for character in text)
    assert size.ascii + size.cjk + size.other == len(text)
    assert min(size.ascii, size.cjk, size.other) >= 0


def test_the_first_estimate_follows_the_formula() -> None:
    """Without a history the weights of the scripts alone decide, and ids and other parts are added as they are."""
    prompt = PromptSize(ascii=400, cjk=100, other=10, ids=7, extra=1000)
    guess = Estimator().estimate("t", "m", prompt, 50, 2)
    assert guess._replace(asked=None, prediction=None) == Estimate(1182, 100, 1182 + 100, 2, 1182 + 100, 50)


@pytest.mark.parametrize("write", [english, code, chinese])
def test_prompt_error_is_within_a_tenth_after_200_requests(write: Callable[[random.Random], str]) -> None:
    """The median error of the requests after the first 200 is at most 10 %, in each kind of text."""
    random_ = random.Random(7)
    errors = teach(Estimator(), "t", (write(random_) for _ in range(300)))
    assert statistics.median(errors[200:]) <= 0.10


def test_tenants_of_one_model_keep_their_own_factors() -> None:
    """Tenants who write in different languages to one model each end within 10 %, however they alternate."""
    random_ = random.Random(11)
    estimator = Estimator()
    errors: dict[str, list[float]] = {"english": [], "code": [], "chinese": []}
    for _ in range(300):
        for name, write in (("english", english), ("code", code), ("chinese", chinese)):
            errors[name] += teach(estimator, name, iter([write(random_)]))
    assert {name: statistics.median(each[200:]) <= 0.10 for name, each in errors.items()} == dict.fromkeys(errors, True)


def test_the_factor_settles_within_a_few_answers() -> None:
    """A tokenizer that is three times denser is known after five answers."""
    estimator, prompt = Estimator(), PromptSize.of("x" * 4000)
    for _ in range(5):
        guess = estimator.estimate("t", "m", prompt, 1, 1)
        estimator.learn("t", "m", prompt, guess, Usage(3000, 1), complete=True)
    assert estimator.estimate("t", "m", prompt, 1, 1).prompt_tokens == pytest.approx(3000, rel=0.02)


def test_one_strange_answer_does_not_move_a_settled_factor() -> None:
    """After a settled history a single report that is 40 times off changes the estimate by less than 2 %."""
    estimator, prompt = Estimator(), PromptSize.of("x" * 4000)
    guess = estimator.estimate("t", "m", prompt, 1, 1)
    for _ in range(50):
        estimator.learn("t", "m", prompt, guess, Usage(1000, 1), complete=True)
    estimator.learn("t", "m", prompt, guess, Usage(40_000, 1), complete=True)
    assert estimator.estimate("t", "m", prompt, 1, 1).prompt_tokens == pytest.approx(1000, rel=0.02)


@pytest.mark.parametrize(("reported", "expected"), [(1, 250), (10**9, 4000)])
def test_the_factor_is_bounded(reported: int, expected: int) -> None:
    """Absurd reports move the estimate by a factor of four at the most."""
    estimator, prompt = Estimator(), PromptSize.of("x" * 4000)
    guess = estimator.estimate("t", "m", prompt, 1, 1)
    for _ in range(100):
        estimator.learn("t", "m", prompt, guess, Usage(reported, 1), complete=True)
    assert estimator.estimate("t", "m", prompt, 1, 1).prompt_tokens == pytest.approx(expected, abs=1)


def test_a_new_tenant_starts_with_the_factor_of_the_model() -> None:
    """What others taught of a model serves a tenant without a history, and no other model."""
    estimator, prompt = Estimator(), PromptSize.of("x" * 4000)
    guess = estimator.estimate("old", "m", prompt, 1, 1)
    for _ in range(50):
        estimator.learn("old", "m", prompt, guess, Usage(2000, 1), complete=True)
    assert estimator.estimate("new", "m", prompt, 1, 1).prompt_tokens == pytest.approx(2000, abs=2)
    assert estimator.estimate("new", "n", prompt, 1, 1).prompt_tokens == 1000


@pytest.mark.parametrize(
    ("prompt", "reported"),
    [(PromptSize(400, extra=1024), 5000), (PromptSize(0, ids=100), 100), (PromptSize(400), 0), (PromptSize(4, ids=90), 80)],
)
def test_prompts_that_tell_nothing_of_the_text_teach_no_factor(prompt: PromptSize, reported: int) -> None:
    """Images, token ids and missing reports leave the estimate of text alone."""
    estimator = Estimator()
    estimator.learn("t", "m", prompt, estimator.estimate("t", "m", prompt, 1, 1), Usage(reported, 1), complete=True)
    assert estimator.estimate("t", "m", PromptSize(4000), 1, 1).prompt_tokens == 1000


def test_output_is_256_or_a_smaller_cap_at_first() -> None:
    """Then it comes near the mean. Rate limits reserve the whole cap until five answers are known."""
    estimator = Estimator()
    prompt = PromptSize(4)
    guess = estimator.estimate("a", "m", prompt, None, 1)
    assert (guess.output_tokens, guess.limit_tokens) == (256, guess.prompt_tokens + 256)
    assert estimator.estimate("a", "m", prompt, 10, 3).output_tokens == 30
    answers(estimator, [40] * 4)
    assert estimator.estimate("a", "m", prompt, 1000, 1).limit_tokens == guess.prompt_tokens + 1000
    answers(estimator, [40])
    guess = estimator.estimate("a", "m", prompt, 1000, 1)
    assert guess.limit_tokens == guess.prompt_tokens + guess.output_tokens
    assert guess.output_tokens == pytest.approx(40, abs=10)
    assert estimator.estimate("a", "m", prompt, None, 3).output_tokens == 3 * guess.output_tokens
    assert estimator.estimate("a", "m", prompt, 10, 3).output_tokens == 30
    assert estimator.estimate("b", "n", prompt, None, 1).output_tokens == 256


def test_usage_of_several_choices_is_learned_per_choice() -> None:
    """Answers of four choices with 200 tokens in all teach 50 tokens a choice."""
    estimator = Estimator()
    answers(estimator, [200] * 100, choices=4)
    assert estimator.estimate("a", "m", PromptSize(4), None, 1).output_tokens == pytest.approx(50, abs=1)


def test_cut_off_answers_are_not_learned() -> None:
    """Cancelled and failed requests leave every later estimate as it was."""
    estimator, prompt = Estimator(), PromptSize.of("x" * 400)
    before = estimator.estimate("t", "m", prompt, None, 1)
    for _ in range(20):
        estimator.learn("t", "m", prompt, before, Usage(350, 3), complete=False)
    assert estimator.estimate("t", "m", prompt, None, 1) == before


def test_old_answers_fade_with_a_half_life_of_500() -> None:
    """After a change of habit, 500 answers bring a long history half of the way."""
    estimator = Estimator()
    answers(estimator, [100] * 5000 + [300] * 500)
    assert estimator.estimate("a", "m", PromptSize(4), None, 1).output_tokens == pytest.approx(200, abs=10)


def test_embeddings_have_no_output_and_teach_none() -> None:
    """With a cap of 0 there is no output, and such requests do not dilute the mean of a tenant's answers."""
    estimator = Estimator()
    answers(estimator, [80] * 10)
    before = estimator.estimate("a", "m", PromptSize(400), None, 1)
    answers(estimator, [0] * 100, cap=0)
    assert estimator.estimate("a", "m", PromptSize(400), 0, 8).output_tokens == 0
    assert estimator.estimate("a", "m", PromptSize(400), None, 1) == before


def test_most_tokens_are_those_of_the_prompt_and_the_caps() -> None:
    """The most a request may hold counts its whole cap, even where less output is expected."""
    estimator = Estimator()
    answers(estimator, [40] * 10)
    guess = estimator.estimate("a", "m", PromptSize(400), 1000, 2)
    assert guess.max_tokens == guess.prompt_tokens + 2000
    guess = estimator.estimate("a", "m", PromptSize(400), None, 2)
    assert guess.max_tokens == guess.prompt_tokens + guess.output_tokens


def test_memory_is_bounded_and_the_longest_unused_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound the tenant that learned nothing for the longest time starts with its model's factor, those in use do not."""
    monkeypatch.setattr(module, "FACTORS_MAX", 4)
    estimator, prompt = Estimator(), PromptSize.of("x" * 400)
    for tenant in ("a", "b", "c", "a", "d", "e"):
        guess = estimator.estimate(tenant, "m", prompt, 1, 1)
        estimator.learn(tenant, "m", prompt, guess, Usage(200, 1), complete=True)
    assert [tenant for (tenant, _), _ in estimator.tenants.items()] == ["c", "a", "d", "e"]


def test_equal_histories_give_equal_estimates() -> None:
    """Two estimators that saw the same requests agree in everything."""
    twins = [Estimator(), Estimator()]
    for estimator in twins:
        random_ = random.Random(3)
        teach(estimator, "t", (english(random_) for _ in range(20)))
    first, second = (estimator.estimate("t", "m", PromptSize(1234), None, 2) for estimator in twins)
    assert first == second


sizes = st.builds(PromptSize, *[st.integers(0, 10**9)] * 5)
usages = st.builds(Usage, st.integers(0, 10**12), st.integers(0, 10**12))
histories = st.lists(st.tuples(sizes, usages, st.booleans()), max_size=12)
caps = st.none() | st.integers(0, 10_000_000)


@given(
    histories, sizes, caps, st.integers(1, 2048 * 128), st.sampled_from(["ascii", "cjk", "other", "ids", "extra"]), st.integers(0, 10**6)
)
def test_estimates_are_positive_and_grow_with_the_prompt(
    history: list[tuple[PromptSize, Usage, bool]], size: PromptSize, cap: int | None, choices: int, unit: str, more: int
) -> None:
    """Whatever was learned, estimates are whole, positive, within the cap, and never smaller for a longer prompt."""
    estimator = Estimator()
    for prompt, usage, complete in history:
        estimator.learn("t", "m", prompt, estimator.estimate("t", "m", prompt, cap, choices), usage, complete=complete)
    counts = {name: getattr(size, name) for name in ("ascii", "cjk", "other", "ids", "extra")}
    longer = PromptSize(**{**counts, unit: counts[unit] + more})
    for tenant in ("t", "new"):
        guess = estimator.estimate(tenant, "m", size, cap, choices)
        after = estimator.estimate(tenant, "m", longer, cap, choices)
        assert all(type(number) is int for number in (guess.prompt_tokens, guess.output_tokens, guess.max_tokens))
        assert 1 <= guess.prompt_tokens <= after.prompt_tokens
        assert guess.output_tokens >= (0 if cap == 0 else choices)
        assert guess.max_tokens >= guess.prompt_tokens + guess.output_tokens
        assert math.isfinite(guess.max_tokens)


def test_of_many_answers_of_a_known_tenant_one_in_a_gap_is_learned() -> None:
    """Everything is learned at first; then what comes within the gap changes nothing, and what comes after it does."""
    estimator, prompt = Estimator(gap_s=0.01), PromptSize.of("x" * 400)
    guess = estimator.estimate("t", "m", prompt, None, 1)

    def learn(tenant: str, now: float) -> int:
        estimator.learn(tenant, "m", prompt, guess, Usage(100, 7), complete=True, now=now)
        return estimator.tenants.use((tenant, "m"), Factor).samples

    assert [learn("t", 1.0) for _ in range(SETTLED)] == list(range(1, SETTLED + 1))
    assert [learn("t", now) for now in (1.0, 1.009, 1.011, 1.012, 1.03)] == [SETTLED + n for n in (0, 0, 1, 1, 2)]
    assert learn("other", 1.03) == 1


def test_a_template_is_heard_once_it_has_come_back() -> None:
    """Templates that are each used once make no histograms; one that comes again and again is told apart from them."""
    estimator = Estimator()
    prompt = PromptSize(400)

    def answer(template: int, output: int) -> Estimate:
        estimate = estimator.estimate("t", "m", prompt, None, 1, template=template)
        estimator.learn("t", "m", prompt, estimate, Usage(100, output), complete=True)
        return estimate

    for template in range(100, 2_000):
        answer(template, 800)
    known = len(estimator.lengths.histograms.levels.nodes)
    assert known < 20
    assert answer(1, 10).output_tokens > 500
    for _ in range(80):  # a prediction is kept until a sixteenth of what is known of the tenant is new
        answer(1, 10)
    assert answer(1, 10).output_tokens < 100
    assert answer(3_000, 800).output_tokens > 500
    assert len(estimator.templates) <= module.TEMPLATES_MAX


def test_templates_fill_no_memory() -> None:
    """However many there are, a bounded number is counted."""
    estimator = Estimator()
    for template in range(1, 3 * module.TEMPLATES_MAX):
        estimator.learn("t", "m", PromptSize(4), Estimate(1, 0, 1, template=template), Usage(1, 0), complete=True)
    assert len(estimator.templates) <= module.TEMPLATES_MAX
