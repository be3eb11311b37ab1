"""Which histograms a request is foretold from, and how far they are trusted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.predict.asked import Asked
from fairlane.predict.histogram import bucket
from fairlane.predict.levels import (
    NOTHING,
    PRIORS,
    TENANT,
    TRUST_MAX,
    Levels,
    Tenant,
    around,
    pauses_around,
    place_of,
    turn_tokens,
    turns_around,
)

ASKED = Asked("tenant", "model")


@given(st.integers(0, 500), st.integers(0, 32))
def test_shares_of_bins_add_up_and_the_nearest_comes_first(turn: int, pause: int) -> None:
    """A value between bins is told by those on both sides, one on a bin by that alone, and no two bins have one number."""
    for shares in (around(turn), turns_around(turn), pauses_around(turn, pause)):
        assert sum(share for share, _ in shares) == pytest.approx(1.0)
        assert shares[0][0] == max(share for share, _ in shares)
        assert len({number for _, number in shares}) == len(shares)
    assert not {number for _, number in turns_around(turn)} & {number for _, number in pauses_around(turn, pause)}


@pytest.mark.parametrize("tokens", [1, 7, 100, 4096, 100_000])
def test_the_place_of_a_turn_tells_its_length(tokens: int) -> None:
    """To a twelfth of it, since a place is an eighth of an octave wide; the shortest ones coarser."""
    _, turn, pause, _ = place_of(ASKED._replace(previous=tokens, idle_s=1e9))
    assert turn is not None
    assert turn_tokens(turn) == pytest.approx(tokens, rel=1 / 12)
    assert pause == 32


def test_what_follows_an_answer_is_another_template_than_what_begins() -> None:
    """Openings and later turns do not share their histograms, and a pause without a turn tells nothing."""
    assert place_of(ASKED)[0] != place_of(ASKED._replace(previous=5))[0]
    assert place_of(ASKED) == place_of(ASKED._replace(idle_s=5.0))


def test_reading_makes_no_histograms() -> None:
    """Requests that are only asked about leave no trace: who is always refused fills no memory."""
    levels = Levels()
    stem = place_of(ASKED)[0]
    chain = levels.chain(stem)
    assert [node.mass for node in chain.nodes] == [0.0] * 6
    assert chain.turns[3] is NOTHING
    assert (len(levels.nodes), len(levels.tenants)) == (0, 0)


def test_what_was_learned_is_read() -> None:
    """The chain and the bins to learn in are those that the next request is foretold from."""
    levels = Levels()
    stem = place_of(ASKED)[0]
    assert levels.chain(stem).turns[3] is NOTHING
    learned = levels.chain_to_learn(stem)
    for node in (*learned.nodes, learned.turns.use(3)):
        node.learn(bucket(50), 50, 0.0)
    read = levels.chain(stem)
    assert read.nodes == learned.nodes
    assert read.tenant is learned.nodes[2]
    assert read.turns[3].learned == 1
    assert len(levels.nodes) == 6


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 1)), max_size=40))
def test_trust_stays_within_its_bounds(gains: list[tuple[float, float]]) -> None:
    """However answers turn out, a level is neither lost for good nor believed blindly, and nothing stands above the first."""
    tenant = Tenant()
    for gain, expected in gains:
        trust = tenant.judge(5, max(-expected, gain), expected)
        assert 0.006 < trust < 0.994
        assert abs(tenant.odds[5]) <= TRUST_MAX
    assert tenant.trust[0] == 1.0
    again = Tenant(list(tenant.odds))
    assert (again.trust, again.priors) == (tenant.trust, tenant.priors)


@pytest.mark.parametrize("level", [4, 5])
def test_sizes_need_fewer_answers_the_more_they_have_told(level: int) -> None:
    """What sizes have gained or cost moves how many answers a new one needs; other levels keep their priors."""
    helped, harmed = Tenant(), Tenant()
    for _ in range(20):
        for each in (level, TENANT):
            helped.judge(each, 0.3, 0.2)
            harmed.judge(each, -0.1, 0.2)
    assert helped.priors[level] < PRIORS[level] / 2
    assert harmed.priors[level] > PRIORS[level] * 2
    assert helped.priors[TENANT] == harmed.priors[TENANT] == PRIORS[TENANT]
