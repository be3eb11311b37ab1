"""The predictor of lengths: its bounds, what it learns, what it must not learn, and how it keeps its coverage."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.predict import levels as levels_module
from fairlane.predict import predictor as predictor_module
from fairlane.predict.asked import Asked, Prediction
from fairlane.predict.histogram import BUCKETS, EDGES, GROUP, HALF_LIFE, HALF_LIFE_S, Lengths, Mixture, bucket
from fairlane.predict.predictor import Predictor

ASKED = Asked("tenant", "model")


def teach(predictor: Predictor, asked: Asked, *lengths: int, cap: int | None = None, now: float = 0.0) -> None:
    for tokens in lengths:
        predictor.learn(asked, cap, predictor.predict(asked, cap), tokens, now)


asked_ones = st.builds(
    Asked,
    st.sampled_from(["a", "b"]),
    st.sampled_from(["m", "n"]),
    st.integers(0, 3),
    st.integers(0, 2),
    st.integers(1, 200_000),
    st.none() | st.integers(1, 100_000),
    st.none() | st.floats(0, 1e6),
    st.just(()),
    st.none() | st.floats(0, 20),
)
caps = st.none() | st.integers(1, 200_000)
histories = st.lists(st.tuples(asked_ones, caps, st.integers(0, 300_000), st.floats(0, 1e7)), max_size=15)


def learned(history: list[tuple[Asked, int | None, int, float]]) -> Predictor:
    predictor = Predictor()
    for asked, cap, tokens, now in sorted(history, key=lambda one: one[3]):
        tokens_ = tokens if cap is None else min(tokens, cap)
        predictor.learn(asked, cap, predictor.predict(asked, cap), tokens_, now)
    return predictor


@given(histories, asked_ones, caps, st.integers(0, 300_000))
def test_predictions_lie_between_one_token_and_the_cap(
    history: list[tuple[Asked, int | None, int, float]], asked: Asked, cap: int | None, produced: int
) -> None:
    """Whatever was learned, all three figures are whole, at least 1, at most the cap, and above what was produced so far."""
    predictor = learned(history)
    for said, least in ((predictor.predict(asked, cap), 1), (predictor.predict(asked, cap, produced), produced + 1)):
        assert all(type(figure) is int for figure in said[:3])
        assert all((least if cap is None else min(cap, least)) <= figure <= (cap or 1 << 60) for figure in said[:3])
        assert said.order >= said.mean


@given(histories, asked_ones, st.floats(0, 1), st.floats(0, 1))
def test_quantiles_grow_with_their_share(
    history: list[tuple[Asked, int | None, int, float]], asked: Asked, one: float, other: float
) -> None:
    """A larger share of answers never has a smaller bound, and the bound holds that share."""
    mixture = learned(history).mixture(asked)
    low, high = sorted((one, other))
    assert mixture.quantile(low) <= mixture.quantile(high) <= EDGES[-1]
    assert mixture.up_to(mixture.quantile(high))[0] == pytest.approx(high, abs=1e-6) or high in {0.0, 1.0}


@given(histories, asked_ones, caps)
def test_equal_histories_give_equal_predictions(history: list[tuple[Asked, int | None, int, float]], asked: Asked, cap: int | None) -> None:
    """Nothing but what was learned and asked decides."""
    assert learned(history).predict(asked, cap) == learned(history).predict(asked, cap)


@given(histories, asked_ones, st.integers(1, 60_000), st.integers(1, 60_000))
def test_an_answer_that_goes_on_is_expected_to_be_longer(
    history: list[tuple[Asked, int | None, int, float]], asked: Asked, one: int, other: int
) -> None:
    """The more was produced, the longer the whole answer will be; its mean is that of the longer ones alone."""
    predictor = learned(history)
    low, high = sorted((one, other))
    means = [predictor.predict(asked, None, produced).mean for produced in (0, low, high)]
    assert means == sorted(means)


def test_survivors_are_told_from_the_rest() -> None:
    """Where half of the answers have 20 tokens and half 2,000, one that passed 100 is expected to have 2,000."""
    predictor = Predictor()
    teach(predictor, ASKED, *[20, 2000] * 200)
    assert predictor.predict(ASKED).mean == pytest.approx(1010, rel=0.05)
    assert predictor.predict(ASKED, None, 100).mean == pytest.approx(2000, rel=0.05)
    assert predictor.predict(ASKED, 500, 100).mean == 500
    assert predictor.predict(ASKED, None, 5000).mean == 6250


def test_nothing_known_is_256_or_the_cap() -> None:
    """A cold start expects 256 tokens, fewer where the cap is lower."""
    said = Predictor().predict(ASKED)
    assert (said.mean, said.order, said.answers) == (256, 256, 0)
    assert said.upper == pytest.approx(256, abs=5)
    assert Predictor().predict(ASKED, 40)[:3] == (40, 40, 40)


def test_a_new_tenant_is_foretold_from_its_class_and_a_new_class_from_its_model() -> None:
    """What is more general stands in for what is not known yet."""
    predictor = Predictor()
    teach(predictor, Asked("old", "model", rank=1), *[40] * 300)
    teach(predictor, Asked("other", "model", rank=2), *[900] * 300)
    assert predictor.predict(Asked("new", "model", rank=1)).mean < 200
    assert predictor.predict(Asked("new", "model", rank=2)).mean > 700
    assert 300 < predictor.predict(Asked("new", "model", rank=3)).mean < 800


def test_templates_of_a_tenant_are_told_apart() -> None:
    """Two templates with short and with long answers do not blur into one another."""
    predictor = Predictor()
    short, long = ASKED._replace(template=1), ASKED._replace(template=2)
    for _ in range(200):
        teach(predictor, short, 20)
        teach(predictor, long, 1500)
    assert predictor.predict(short).upper < 60
    assert predictor.predict(long).mean > 1200


def test_sizes_of_prompts_are_heard_where_they_tell_something() -> None:
    """A size of prompt that has answers of its own is known by it; where sizes are noise, the tenant's history decides."""
    random_ = random.Random(2)
    told, noise = Predictor(), Predictor()
    for _ in range(1500):
        size = random_.choice([200, 1000])
        teach(told, ASKED._replace(prompt_tokens=size), 30 if size == 200 else 600)
        teach(noise, ASKED._replace(prompt_tokens=size), random_.choice([30, 600]))
    assert told.predict(ASKED._replace(prompt_tokens=200)).upper < 60
    assert told.predict(ASKED._replace(prompt_tokens=1000)).mean > 550
    assert noise.predict(ASKED._replace(prompt_tokens=200)).mean == pytest.approx(315, rel=0.15)


def test_the_turn_before_is_heard_at_once_and_learned_from() -> None:
    """A conversation is assumed to go on as it was; what such turns turn out to be replaces the assumption."""
    predictor = Predictor()
    teach(predictor, ASKED, *[100] * 300)
    after = ASKED._replace(previous=2000)
    assert predictor.predict(after).mean > 400
    teach(predictor, after, *[50] * 200)
    assert predictor.predict(after).mean < 80


def test_like_requests_share_what_is_kept_for_between_the_bins() -> None:
    """A turn between two bins is foretold between them."""
    predictor = Predictor()
    for _ in range(300):
        teach(predictor, ASKED._replace(previous=127), 100)
        teach(predictor, ASKED._replace(previous=255), 1000)
    means = [predictor.predict(ASKED._replace(previous=previous)).mean for previous in (127, 151, 213, 255)]
    assert means == sorted(means)


def test_a_new_tenant_is_told_from_others_after_a_few_answers() -> None:
    """Ten short answers to prompts of all sizes make a short one likely, however long those of the others were."""
    predictor = Predictor()
    for place in range(300):
        teach(predictor, Asked("settled", "model", prompt_tokens=1 + place), 1000)
    for place in range(10):
        teach(predictor, Asked("new", "model", prompt_tokens=2**place), 20)
    assert predictor.mixture(Asked("new", "model", prompt_tokens=100_000)).quantile(0.5) < 50


@pytest.mark.parametrize(("is_told", "least", "most"), [(True, 1500, 4000), (False, 0, 300)])
def test_a_new_size_is_heard_early_where_sizes_have_told_lengths(is_told: bool, least: int, most: int) -> None:
    """Three long answers to prompts of a new size make a long one likely if sizes have gone with lengths, and not if they have not."""
    random_ = random.Random(3)
    predictor, sizes = Predictor(), [2**exponent for exponent in range(3, 11)]
    for _ in range(600):
        size = random_.choice(sizes)
        teach(predictor, ASKED._replace(prompt_tokens=size), 2 * size if is_told else 2 * random_.choice(sizes))
    teach(predictor, ASKED._replace(prompt_tokens=30_000), *[3000] * 3)
    assert least < predictor.mixture(ASKED._replace(prompt_tokens=30_000)).quantile(0.5) < most


@pytest.mark.parametrize(
    "draw",
    [
        lambda random_: random_.lognormvariate(5, 1),
        lambda random_: random_.choice([12, 400]) + random_.random() * 50,
        lambda random_: random_.paretovariate(1.5) * 30,
        lambda random_: random_.randint(1, 40),
    ],
    ids=["lognormal", "two modes", "heavy tail", "uniform"],
)
def test_upper_lengths_cover_what_they_promise(draw: Callable[[random.Random], float]) -> None:
    """On a stationary stream of 5,000 answers 90 % are within their upper length, give or take 3 points."""
    random_ = random.Random(5)
    predictor, within = Predictor(), 0
    for _ in range(5000):
        asked = ASKED._replace(prompt_tokens=random_.randint(1, 5000))
        said, tokens = predictor.predict(asked), max(1, round(draw(random_)))
        within += tokens <= said.upper
        predictor.learn(asked, None, said, tokens, 0.0)
    assert within / 5000 == pytest.approx(0.9, abs=0.03)


def test_answers_cut_off_by_their_cap_are_not_learned_as_complete() -> None:
    """Answers that always end at a cap of 100 say nothing of how long they are, but that they are longer."""
    predictor = Predictor()
    teach(predictor, ASKED, *[100] * 300, cap=100)
    assert predictor.predict(ASKED, 100).mean >= 99
    assert predictor.predict(ASKED).mean > 200


def test_censored_answers_keep_the_shape_of_the_tail() -> None:
    """Where half of the requests are capped at 200, the others' distribution is found all the same."""
    random_ = random.Random(8)
    predictor, whole = Predictor(), Predictor()
    for _ in range(3000):
        tokens = max(1, round(random_.lognormvariate(5, 1)))
        teach(whole, ASKED, tokens)
        if random_.random() < 0.5:
            teach(predictor, ASKED, min(200, tokens), cap=200)
        else:
            teach(predictor, ASKED, tokens)
    for share in (0.5, 0.8, 0.9):
        assert predictor.mixture(ASKED).quantile(share) == pytest.approx(whole.mixture(ASKED).quantile(share), rel=0.2)


def test_a_small_cap_does_not_lower_the_upper_lengths() -> None:
    """Requests whose cap alone decides whether their answer is longer teach the calibration nothing."""
    predictor = Predictor()
    teach(predictor, ASKED, *[50, 100, 200, 400] * 50)
    before = [(key, shift.log) for key, shift in predictor.shifts.items()]
    teach(predictor, ASKED, *[10] * 500, cap=10)
    assert [(key, shift.log) for key, shift in predictor.shifts.items()] == before


def test_what_a_client_declares_cannot_move_others() -> None:
    """Declaring tiny caps bounds the own answers, and leaves the other tenants' predictions near what they were."""
    predictor = Predictor()
    for _ in range(100):
        teach(predictor, Asked("honest", "model"), 300)
    before = predictor.predict(Asked("honest", "model")).mean
    teach(predictor, Asked("sly", "model"), *[1] * 1000, cap=1)
    assert predictor.predict(Asked("honest", "model")).mean == pytest.approx(before, rel=0.1)


def test_old_answers_fade_with_their_number_and_with_time() -> None:
    """500 later answers halve the weight of the former ones, and so do six hours."""
    for count, now in ((HALF_LIFE, 0.0), (1, HALF_LIFE_S)):
        lengths = Lengths()
        for _ in range(5000):
            lengths.learn(bucket(100), 100, 0.0)
        before = lengths.evidence
        for _ in range(count):
            lengths.learn(bucket(300), 300, now)
        kept = lengths.counts[bucket(100)] / lengths.weight
        assert kept == pytest.approx(before / 2, rel=0.01)


def test_weights_that_grew_large_are_scaled_back() -> None:
    """Years of answers do not overflow, and the histogram is the same after its weights were scaled."""
    lengths = Lengths()
    for place in range(3000):
        lengths.learn(bucket(1 + place % 7), 1 + place % 7, place * HALF_LIFE_S)
        assert lengths.evidence < 2.1
    assert Mixture([lengths.weighted(1.0)]).mean() == pytest.approx(1 + 2999 % 7, abs=2)


def test_running_sums_lack_a_bounded_part() -> None:
    """A cached prediction is renewed once a sixteenth of the tenant's evidence is new."""
    predictor = Predictor()
    teach(predictor, ASKED, *[100] * 320)
    before = predictor.predict(ASKED).mean
    for _ in range(60):
        predictor.learn(ASKED, None, Prediction(100, 100, 100, 100.0), 1000, 0.0)
    assert before == pytest.approx(100, abs=2)
    assert predictor.predict(ASKED).mean > 200


def test_memory_is_bounded_and_the_longest_unused_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tenants there are, the histograms stay within their number, and a busy tenant keeps its own."""
    monkeypatch.setattr(levels_module, "HISTOGRAMS_MAX", 60)
    predictor = Predictor()
    levels = predictor.levels
    for place in range(300):
        teach(predictor, ASKED, 700)
        teach(predictor, Asked(f"passing {place}", "model", prompt_tokens=1 + place), 20)
        assert max(len(levels.nodes), len(levels.tenants)) <= 60
    assert predictor.predict(ASKED).mean > 500
    assert predictor.predict(Asked("passing 0", "model")).answers == 0


def test_conversations_in_use_are_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found again without a search counts as used: the bins of a busy template outlast any number of others."""
    monkeypatch.setattr(levels_module, "HISTOGRAMS_MAX", 100)
    predictor, after = Predictor(), ASKED._replace(previous=127, idle_s=7.0)
    teach(predictor, after, *[900] * 50)
    for place in range(300):
        teach(predictor, after, 900)
        teach(predictor, Asked(f"passing {place}", "model", previous=1 + place), 20)
    assert predictor.predict(after).mean > 700


def test_what_was_forgotten_is_not_foretold_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prediction that is kept ends with the histograms that it came from."""
    monkeypatch.setattr(levels_module, "HISTOGRAMS_MAX", 60)
    predictor = Predictor()
    teach(predictor, ASKED, *[700] * 100)
    assert predictor.predict(ASKED).answers == 100
    for place in range(100):
        teach(predictor, Asked(f"passing {place}", "other", prompt_tokens=1 + place), 20)
    said = predictor.predict(ASKED)
    assert (said.mean, said.answers) == (256, 0)


def test_kept_predictions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions that are kept for like requests do not pile up."""
    monkeypatch.setattr(predictor_module, "SAID_MAX", 10)
    predictor = Predictor()
    teach(predictor, ASKED, *[100] * 40)
    for size in range(1, 500):
        predictor.predict(ASKED._replace(prompt_tokens=size))
    assert len(predictor._said) <= 10


@given(histories, asked_ones, caps)
def test_a_kept_prediction_is_the_one_that_would_be_made(
    history: list[tuple[Asked, int | None, int, float]], asked: Asked, cap: int | None
) -> None:
    """As long as nothing is learned, asking again gives the same."""
    predictor = learned(history)
    assert predictor.predict(asked, cap) == predictor.predict(asked, cap) == predictor.judge(predictor.mixture(asked), asked, cap)


def histograms(predictor: Predictor) -> list[Lengths]:
    return [node for _, node in predictor.levels.nodes.items()] + [node for _, node in predictor.levels.tenants.items()]


@given(histories)
def test_sums_equal_a_recount(history: list[tuple[Asked, int | None, int, float]]) -> None:
    """What histograms keep count of is what their buckets hold."""
    for node in histograms(learned(history)):
        assert node.mass == pytest.approx(sum(node.counts))
        assert node.groups == pytest.approx([sum(node.counts[at : at + GROUP]) for at in range(0, BUCKETS, GROUP)])


@given(
    st.lists(st.tuples(st.floats(0.01, 1), st.lists(st.integers(1, 70_000), min_size=1, max_size=8)), min_size=1, max_size=5),
    st.floats(0, 1),
)
def test_a_bound_holds_its_share(parts: list[tuple[float, list[int]]], share: float) -> None:
    """Wherever it is looked for first, the length that a share does not exceed is the one, with what they add to the mean."""
    whole = sum(weight for weight, _ in parts)
    mixture = Mixture([of(lengths).weighted(weight / whole) for weight, lengths in parts])
    length, amount = mixture.bound(share)
    held, added = mixture.up_to(length)
    assert held == pytest.approx(max(share, mixture.up_to(0.0)[0]), abs=1e-6)
    assert amount == pytest.approx(added, rel=1e-6, abs=1e-6)
    assert mixture.bound(1.0)[1] == pytest.approx(mixture.mean())


def of(lengths: list[int]) -> Lengths:
    node = Lengths()
    for tokens in lengths:
        node.learn(bucket(tokens), min(tokens, EDGES[-1]), 0.0)
    return node
