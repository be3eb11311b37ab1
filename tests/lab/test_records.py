"""Recorded requests as a predictor would have been asked about them, and their replay from the past only."""

from pathlib import Path

import pytest

from fairlane.lab.records import Conversations, Record, read
from fairlane.lab.replay import replay
from fairlane.predict.asked import Asked, Prediction
from fairlane.predict.histogram import Mixture
from fairlane.predict.predictor import Predictor
from fairlane.predict.trained.hints import NAMES
from fairlane.sim.load.traces import TraceError

HEADER = "t,input_tokens,output_tokens"


def records(tmp_path: Path, text: str, conversations: Conversations | None = None) -> list[Record]:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return list(read(path, conversations))


def test_only_three_columns_are_needed(tmp_path: Path) -> None:
    """A request without anything else has one tenant, one model and no conversation."""
    (one,) = records(tmp_path, f"{HEADER}\n5,70,100\n")
    assert (one.t, one.cap, one.tokens, one.done) == (5.0, None, 100, 7.5)
    assert one.asked._replace(hints=()) == Asked("tenant", "model", prompt_tokens=70)


def test_what_else_is_there_is_used(tmp_path: Path) -> None:
    """Names, caps, templates and what the request looks like."""
    header = f"{HEADER},tenant,class,model,template,max_tokens,tools,response_format,previous_tokens,prompt"
    one, two = records(tmp_path, f'{header}\n0,7,5,a,paid,m,x,50,2,json,9,"Explain, why?"\n1,7,5,a,free,m,y,,,,,\n')
    assert (one.asked.tenant, one.asked.model, one.cap, one.asked.previous) == ("a", "m", 50, 9)
    assert (two.cap, two.asked.previous) == (None, None)
    assert (one.asked.rank, one.asked.template) != (two.asked.rank, two.asked.template)
    named = dict(zip(NAMES, one.asked.hints, strict=True))
    assert (named["tools"], named["format"], named["explain"], named["asks"]) == (2.0, 1.0, 1.0, 1.0)


def test_sessions_are_followed(tmp_path: Path) -> None:
    """A turn knows the one before it as soon as that was complete."""
    text = f"{HEADER},session_id\n0,10,100,s\n1,120,20,s\n9,150,20,s\n9,150,20,other\n"
    asked = [record.asked for record in records(tmp_path, text)]
    assert [one.previous for one in asked] == [None, None, 20, None]
    assert [one.idle_s for one in asked] == [None, None, pytest.approx(9 - 1.9), None]
    assert asked[2].hints[NAMES.index("turns")] == 1.0


def test_prompts_that_share_more_than_their_first_block_are_a_conversation(tmp_path: Path) -> None:
    """The first block is everybody's system prompt; what goes on from the second goes on with that answer."""
    text = f"{HEADER},hash_ids\n0,1000,100,1 2\n9,1000,50,1 3\n20,2000,70,1 2 4\n30,3000,5,1 2 4 5\n"
    assert [record.asked.previous for record in records(tmp_path, text)] == [None, None, 100, 70]


def test_conversations_go_on_in_another_trace(tmp_path: Path) -> None:
    """What was going on at the end of one trace is known in the next."""
    conversations: Conversations = {}
    records(tmp_path, f"{HEADER},session_id\n0,10,100,s\n", conversations)
    (one,) = records(tmp_path, f"{HEADER},session_id\n100,200,5,s\n", conversations)
    assert one.asked.previous == 100


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f"{HEADER},max_tokens\n0,1,2,x\n", "line 2, column 4 (max_tokens): 'x' is not a number"),
        (f"{HEADER},previous_tokens\n0,1,2,-1\n", "line 2, column 4 (previous_tokens): -1 must be finite and not negative"),
        (f"{HEADER},tools\n0,1,2,\n1,1,2,inf\n", "line 3, column 4 (tools): inf must be finite and not negative"),
        (f"{HEADER},session_id\n0,1,2\n", "line 2, column 4 (session_id): is missing"),
    ],
)
def test_a_bad_column_is_refused_with_its_place(tmp_path: Path, text: str, place: str) -> None:
    """The first fault is told with file, line and column."""
    with pytest.raises(TraceError) as error:
        records(tmp_path, text)
    assert str(error.value) == f"{tmp_path / 'trace.csv'}, {place}"


class Witness:
    """Notes in which order a predictor is asked and taught."""

    def __init__(self) -> None:
        self.lengths = self.histograms = Predictor()
        self.seen: list[tuple[str, str]] = []

    def predict(self, asked: Asked, cap: int | None = None, produced: int = 0) -> Prediction:
        self.seen.append(("asked", asked.tenant))
        return self.lengths.predict(asked, cap, produced)

    def mixture(self, asked: Asked, cap: int | None = None) -> Mixture:
        return self.lengths.mixture(asked, cap)

    def learn(self, asked: Asked, cap: int | None, prediction: Prediction, tokens: int, now: float) -> None:
        self.seen.append(("taught", asked.tenant))
        self.lengths.learn(asked, cap, prediction, tokens, now)


def test_a_replay_knows_only_what_was_complete(tmp_path: Path) -> None:
    """An answer is learned when it would have been there, not when it was asked for, and each one exactly once."""
    witness = Witness()
    text = f"{HEADER},tenant\n0,1,500,long\n1,1,10,short\n2,1,10,between\n60,1,10,last\n"
    assert len(list(replay(records(tmp_path, text), witness))) == 4
    assert witness.seen == [
        ("asked", "long"),
        ("asked", "short"),
        ("taught", "short"),
        ("asked", "between"),
        ("taught", "between"),
        ("taught", "long"),
        ("asked", "last"),
        ("taught", "last"),
    ]
