"""What is learned of the length of answers: by what, how it survives a restart, and that no file is overwritten by mistake."""

import json
import math
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
import yaml

from fairlane.gateway.calls.body import CHAT, read
from fairlane.predict.estimate import Estimator
from fairlane.predict.predictor import Predictor
from fairlane.predict.state import load
from fairlane.predict.trained.boosted import COMPARED_MIN, FEATURES
from fairlane.predict.trained.model import model_document
from tests.caller import chat
from tests.harness import FAIRLANE, Gateway, Json, engine, key_of, settings, tenant
from tests.stub import Plan, Stub
from tests.stub.plan import Usage

ANSWERS = 8
SECRET = "the secret words of a prompt"


def configured(stub: Stub, **predictor: object) -> Json:
    """A tenant that may not use as much as its cap of 5,000 allows, but far more than its answers really have."""
    limited = tenant("acme", tokens_per_minute={"rate": 60_000, "burst": 4_000})
    return settings([engine(stub, 4)], tenants=[limited]) | {"predictor": predictor}


def asks(gateway: Gateway, **fields: object) -> int:
    return gateway.post(chat(SECRET, max_tokens=5_000, **fields), key=key_of("acme")).status


def teach(gateway: Gateway) -> None:
    for _ in range(ANSWERS):
        assert gateway.post(chat(SECRET, max_tokens=100), key=key_of("acme")).status == 200


def folder(tmp_path: Path, name: str) -> Path:
    made = tmp_path / name
    made.mkdir()
    return made


def refused_start(configuration: Json, tmp_path: Path) -> str:
    """What a gateway says that does not even start."""
    file = tmp_path / "wrong.yaml"
    server = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"}
    file.write_text(yaml.safe_dump(configuration | {"server": server}))
    done = subprocess.run([FAIRLANE, "serve", "--config", str(file)], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_restart_keeps_what_was_learned(stub: Stub, tmp_path: Path) -> None:
    """A cap beyond the limit is refused by one who knows nothing, and served by one who knows how short the answers are."""
    stub.plan = Plan(usage=Usage(10, 20))
    state = tmp_path / "state.json"
    configuration = configured(stub, state_file=str(state))
    with Gateway(configuration, folder(tmp_path, "first")) as gateway:
        assert asks(gateway) == 429
        teach(gateway)
        assert asks(gateway) == 200
    with Gateway(configuration, folder(tmp_path, "second")) as gateway:
        assert asks(gateway) == 200
    assert SECRET not in state.read_text()
    assert list(tmp_path.glob("state.json*")) == [state]


def test_without_a_file_each_start_begins_anew(stub: Stub, tmp_path: Path) -> None:
    """Nothing is kept that nobody asked for."""
    stub.plan = Plan(usage=Usage(10, 20))
    with Gateway(configured(stub), folder(tmp_path, "first")) as gateway:
        teach(gateway)
        assert asks(gateway) == 200
    with Gateway(configured(stub), folder(tmp_path, "second")) as gateway:
        assert asks(gateway) == 429


def test_a_killed_gateway_leaves_the_file_as_it_was(stub: Stub, tmp_path: Path) -> None:
    """The file is good, and so is the next start, though a half-written file lies beside it; only an old one is taken away."""
    stub.plan = Plan(usage=Usage(10, 20))
    state = tmp_path / "state.json"
    configuration = configured(stub, state_file=str(state))
    with Gateway(configuration, folder(tmp_path, "first")) as gateway:
        teach(gateway)
    saved = state.read_bytes()
    old, young = tmp_path / "state.json.old.new", tmp_path / "state.json.young.new"
    old.write_bytes(saved[:100])
    young.write_bytes(saved[:100])
    os.utime(old, (0, 0))
    gateway = Gateway(configuration, folder(tmp_path, "second"))
    with gateway:
        assert asks(gateway) == 200
        gateway.process.send_signal(signal.SIGKILL)
        gateway.process.wait(5)
        gateway.process.returncode = 0
        assert state.read_bytes() == saved
        assert (old.exists(), young.exists()) == (False, True)


def version_zero(saved: bytes) -> bytes:
    return json.dumps(json.loads(saved) | {"version": 0}).encode()


@pytest.mark.parametrize(
    "spoil",
    [version_zero, lambda saved: saved[:-20], lambda _: b"", lambda _: b"a note of mine\n", lambda _: b"\xff\x00"],
    ids=["version", "truncated", "empty", "text", "binary"],
)
def test_a_state_that_does_not_match_stops_the_start(stub: Stub, tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    """Exit code 2, the file and the cure are named, and the file stays byte for byte what it was."""
    state = tmp_path / "state.json"
    configuration = configured(stub, state_file=str(state))
    with Gateway(configuration, folder(tmp_path, "first")) as gateway:
        teach(gateway)
    state.write_bytes(spoil(state.read_bytes()))
    before, stat = state.read_bytes(), state.stat()
    told = refused_start(configuration, tmp_path)
    assert str(state) in told
    assert "does not match" in told
    assert "move it away" in told
    assert state.read_bytes() == before
    assert (state.stat().st_mtime_ns, state.stat().st_ino) == (stat.st_mtime_ns, stat.st_ino)


@pytest.mark.parametrize("name", ["nowhere/state.json", "wrong.yaml/state.json", "."])
def test_a_file_that_could_not_be_written_stops_the_start(stub: Stub, tmp_path: Path, name: str) -> None:
    """Without its folder, below a file, or where a folder has its name: told at the start, not at the first saving."""
    told = refused_start(configured(stub, state_file=str(tmp_path / name)), tmp_path)
    assert "predictor.state_file" in told


@pytest.mark.parametrize("text", [None, "{}", '{"format":"fairlane-length-model","version":1,"features":[]}'])
def test_a_model_that_does_not_match_stops_the_start(stub: Stub, tmp_path: Path, text: str | None) -> None:
    """One that is not there, is something else, or reads other features is named, with what to do."""
    model = tmp_path / "model.json"
    if text is not None:
        model.write_text(text)
    told = refused_start(configured(stub, model_file=str(model)), tmp_path)
    assert str(model) in told
    assert "train it anew" in told


def test_failing_to_save_takes_nothing_down(stub: Stub, tmp_path: Path) -> None:
    """A folder that has gone is a warning in the log; the gateway serves, and stops as it should."""
    gone = folder(tmp_path, "gone")
    with Gateway(configured(stub, state_file=str(gone / "state.json")), folder(tmp_path, "first")) as gateway:
        teach(gateway)
        gone.rmdir()
        assert gateway.post(chat("hi"), key=key_of("acme")).status == 200
    assert '"event":"state_not_saved"' in gateway.stderr().replace(" ", "")


def test_a_trained_model_is_heard_once_it_helps(stub: Stub, tmp_path: Path) -> None:
    """What tells the answers apart are words of the prompts, which only a model reads: at first it is not heard, later it is."""
    place = FEATURES.index("choice")
    file = tmp_path / "model.json"
    trees = [[[float(place), 0.5, 1, 2], [math.log2(900)], [math.log2(5)]]]
    file.write_text(json.dumps(model_document(trees, Predictor(), 0.0)))
    long, short = chat("Tell me about this", max_tokens=2_000), chat("Is this true, yes or no", max_tokens=2_000)
    limited = tenant("acme", tokens_per_minute={"rate": 60_000_000, "burst": 300})
    free = tenant("free")
    configuration = settings([engine(stub, 4)], tenants=[limited, free]) | {"predictor": {"model_file": str(file)}}
    with Gateway(configuration, folder(tmp_path, "first")) as gateway:
        for turn in range(2 * COMPARED_MIN):
            stub.plan = Plan(usage=Usage(10, 5 if turn % 2 else 900))
            assert gateway.post(short if turn % 2 else long, key=key_of("free")).status == 200
            if turn == 10:
                assert gateway.post(short, key=key_of("acme")).status == 429
        stub.plan = Plan(usage=Usage(10, 5))
        for _ in range(ANSWERS):
            gateway.post(chat("Is this true, yes or no", max_tokens=200), key=key_of("acme"))
        assert gateway.post(short, key=key_of("acme")).status == 200


def learned(state: Path) -> Estimator:
    """An estimator that knows what a gateway has saved."""
    estimator = Estimator()
    load(state.read_bytes(), estimator, 0.0)
    return estimator


def expected(estimator: Estimator, body: Json, *, tenant: str, previous: int | None = None) -> int:
    """How long the answer to a body is expected to be."""
    call = read(CHAT, orjson.dumps(body))
    idle_s = None if previous is None else 0.1
    template = call.shape.template
    return estimator.estimate(tenant, "m", call.prompt, None, 1, template=template, previous=previous, idle_s=idle_s).output_tokens


def test_templates_of_one_tenant_are_told_apart(stub: Stub, tmp_path: Path) -> None:
    """Of two workloads with system prompts of their own each is foretold by its own answers, and one without by all."""
    user = {"role": "user", "content": "hi"}
    short, long = (chat(messages=[{"role": "system", "content": text}, user]) for text in ("Answer yes or no.", "Write a long essay"))
    state = tmp_path / "state.json"
    with Gateway(configured(stub, state_file=str(state)), folder(tmp_path, "first")) as gateway:
        for _ in range(40):
            for body, tokens in ((short, 5), (long, 900)):
                stub.plan = Plan(usage=Usage(20, tokens))
                assert gateway.post(body | {"max_tokens": 1_000}).status == 200
    anonymous = learned(state)
    name = next(tenant for tenant, _, _ in (key for key, _ in anonymous.templates.items()))
    assert expected(anonymous, short, tenant=name) < 60
    assert expected(anonymous, long, tenant=name) > 700
    assert 100 < expected(anonymous, chat(), tenant=name) < 800


def talk(begin: str) -> tuple[Json, Json]:
    """The two turns of a conversation."""
    messages = [{"role": "user", "content": begin}, {"role": "assistant", "content": "x"}, {"role": "user", "content": "more"}]
    return chat(messages=messages[:1], max_tokens=1_000), chat(messages=messages, max_tokens=1_000)


def test_the_turn_before_is_known(stub: Stub, tmp_path: Path) -> None:
    """What follows a long answer is learned apart from what follows a short one."""
    state = tmp_path / "state.json"
    with Gateway(configured(stub, state_file=str(state)), folder(tmp_path, "first")) as gateway:
        for place in range(40):
            for body in talk(f"question {place}"):
                stub.plan = Plan(usage=Usage(20, 900 if place % 2 else 5))
                assert gateway.post(body).status == 200
    anonymous = learned(state)
    name = next(iter(key for key, _ in anonymous.tenants.items()))[0]
    _, body = talk("another question")
    assert expected(anonymous, body, tenant=name, previous=5) < 100
    assert expected(anonymous, body, tenant=name, previous=900) > 600
