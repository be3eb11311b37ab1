"""`fairlane predict`: scores of a trace, and a model that is trained on the one and tried on the next."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from fairlane.cli import main
from fairlane.lab import train as training
from fairlane.lab import trained
from fairlane.lab.records import Conversations, read
from fairlane.predict.predictor import Predictor
from fairlane.predict.trained.model import model_document

TASKS = {"Write a long essay about rivers": 900, "Answer yes or no: is it so?": 4, "Translate this line, please": 60}

EMPTY = model_document([[[8.0]]], Predictor(), 0.0)


def trace(path: Path, seed: int, requests: int) -> Path:
    """Requests whose answers depend on what their text asks for, and on nothing else."""
    random_ = random.Random(seed)
    lines = ["t,input_tokens,output_tokens,prompt"]
    for place in range(requests):
        task = random_.choice(list(TASKS))
        lines.append(f'{place * 2},{random_.randint(20, 40)},{round(TASKS[task] * random_.uniform(0.7, 1.3)) + 1},"{task}"')
    path.write_text("\n".join(lines) + "\n")
    return path


def figures(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, float]:
    assert main(["predict", "eval", "--json", *arguments]) == 0
    found: dict[str, float] = json.loads(capsys.readouterr().out)
    return found


def test_eval_scores_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All figures are there, and coverage is near 90 %."""
    path = trace(tmp_path / "trace.csv", 1, 1500)
    found = figures(capsys, "--trace", str(path))
    assert list(found) == ["rows", "auc", "tau", "tau_order", "mae", "pinball", "coverage", "bias"]
    assert found["rows"] == 1500
    assert found["coverage"] == pytest.approx(0.9, abs=0.03)
    assert figures(capsys, "--trace", str(path), "--last", "0.2")["rows"] == 300


def test_eval_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json each figure has a line; one that cannot be told is a dash."""
    path = tmp_path / "one.csv"
    path.write_text("t,input_tokens,output_tokens\n0,1,2\n")
    assert main(["predict", "eval", "--trace", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["rows", "1"]
    assert lines[1].split() == ["auc", "-"]


def test_a_trained_model_is_better_where_texts_tell_something(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The next requests are ranked and bounded far better than from histories alone, with the same coverage."""
    data, after, out = trace(tmp_path / "data.csv", 1, 1500), trace(tmp_path / "after.csv", 2, 1500), tmp_path / "model.json"
    assert main(["predict", "train", "--data", str(data), "--out", str(out)]) == 0
    assert "1,500" in capsys.readouterr().out
    plain, helped = figures(capsys, "--trace", str(after)), figures(capsys, "--trace", str(after), "--model", str(out))
    assert plain["auc"] < 0.6
    assert helped["auc"] > 0.95
    assert plain["tau"] < 0.2
    assert helped["tau"] > 0.6
    assert helped["pinball"] < plain["pinball"] / 2
    assert helped["coverage"] == pytest.approx(0.9, abs=0.03)


def test_training_is_deterministic(tmp_path: Path) -> None:
    """The same data give the same model."""
    records = list(read(trace(tmp_path / "data.csv", 3, 400)))
    assert training.train(records) == training.train(records)


def test_without_its_library_training_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The extra is named, and nothing is written."""
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    out = tmp_path / "model"
    assert main(["predict", "train", "--data", str(trace(tmp_path / "data.csv", 1, 300)), "--out", str(out)]) == 2
    assert "pip install 'fairlane[predict]'" in capsys.readouterr().err
    assert not out.exists()


def test_reading_a_model_needs_no_library(tmp_path: Path) -> None:
    """Whoever only predicts does not even load what training stands on."""
    path = tmp_path / "model.json"
    trained.write(path, EMPTY, {})
    code = "import sys\nfrom pathlib import Path\nfrom fairlane.lab import trained\n"
    code += "from fairlane.predict.asked import Asked\n"
    code += f"trained.read(Path({str(path)!r}))[0].predict(Asked('tenant', 'model'))\n"
    code += "sys.exit(not {'lightgbm', 'numpy'}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_conversations_are_stored_with_the_model(tmp_path: Path) -> None:
    """Names that share the end of a conversation find it again."""
    path = tmp_path / "trace.csv"
    path.write_text("t,input_tokens,output_tokens,hash_ids\n0,1000,100,1 2 3\n9,1000,50,1 4\n")
    conversations: Conversations = {}
    list(read(path, conversations))
    trained.write(tmp_path / "model.json", EMPTY, conversations)
    assert trained.read(tmp_path / "model.json")[1] == conversations


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["eval", "--trace", "absent.csv"], "absent.csv: cannot be read"),
        (["eval", "--trace", "bad.csv"], "bad.csv, line 3, column 3 (output_tokens): 'x' is not a number"),
        (["eval", "--trace", "good.csv", "--model", "absent"], "absent: cannot be read"),
        (["eval", "--trace", "good.csv", "--model", "bad.csv"], "the trained model does not match"),
        (["train", "--data", "good.csv", "--out", "model"], "20 requests are too few"),
        (["train", "--data", "good.csv", "--out", "nowhere/model"], "there is no folder nowhere"),
    ],
)
def test_what_cannot_be_done_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    """Exit code 2, one reason, and nothing written."""
    monkeypatch.chdir(tmp_path)
    trace(Path("good.csv"), 1, 20)
    Path("bad.csv").write_text("t,input_tokens,output_tokens\n0,1,2\n1,2,x\n")
    assert main(["predict", *arguments]) == 2
    assert told in capsys.readouterr().err
    assert not Path("model").exists()


def test_conversations_that_do_not_match_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file whose model is whole and whose conversations are not stops the scoring."""
    data, out = trace(tmp_path / "data.csv", 3, 20), tmp_path / "model.json"
    out.write_text(json.dumps(EMPTY | {"conversations": [[1, 2]]}))
    assert main(["predict", "eval", "--trace", str(data), "--model", str(out)]) == 2
    assert "the conversations do not match" in capsys.readouterr().err
