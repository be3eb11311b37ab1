"""What someone meets who uses a gateway for the first time: each mistake is answered with what to do instead."""

import asyncio
import json
import re
import subprocess

import pytest

from fairlane.errors import EngineError
from fairlane.gateway.discover import settings_for
from tests.caller import Answer, chat
from tests.harness import FAIRLANE, Start, engine, key_of, settings, tenant
from tests.stub import Plan, Stub, Usage


def message(answer: Answer) -> str:
    """Return the text of an error answer."""
    return str(answer.json()["error"]["message"])


def test_wrong_paths_and_methods_are_told_the_right_ones(stub: Stub, start: Start) -> None:
    """A page of the admin port is named as one, an unknown path is told where the API is, and a 405 names the method."""
    gateway = start(settings([engine(stub, 1)]))
    for path, told in {
        "/": "Unknown path; the API is under /v1.",
        "/metrics": "/metrics is on the admin port.",
        "/admin/state": "/admin is on the admin port.",
    }.items():
        answer = gateway.open(b"", path=path, method="GET").finish()
        assert (answer.status, message(answer)) == (404, told)
    for path, method, allow in (("/v1/chat/completions", "GET", "POST"), ("/v1/models", "POST", "GET, HEAD")):
        answer = gateway.open(b"", path=path, method=method).finish()
        assert (answer.status, answer.header("allow")) == (405, allow)
        assert message(answer) == f"This path does not take that method; use {allow.split(',')[0]}."


def test_an_unknown_model_is_answered_with_the_usable_ones(stub: Stub, start: Start) -> None:
    """Both routes repeat the name, cut to its beginning, and name up to five models that the caller's key opens."""
    configuration = settings([engine(stub, 1)], tenants=[tenant("narrow", models=["m3"])])
    configuration["pools"] = [{"name": "main", "models": [f"m{n}" for n in range(7)], "engines": [engine(stub, 1)]}]
    gateway = start(configuration)
    name = "x" * 120
    told = f"The model {'x' * 100!r} does not exist or you do not have access to it. You may use 'm0', 'm1', 'm2', 'm3', 'm4' and others."
    assert message(gateway.post(chat() | {"model": name})) == told
    assert message(gateway.open(b"", path=f"/v1/models/{name}", method="GET").finish()) == told
    assert message(gateway.post(chat(), key=key_of("narrow"))).endswith(" You may use 'm3'.")


def test_a_refusal_by_a_token_limit_tells_its_numbers(stub: Stub, start: Start) -> None:
    """What the request would use, what is left, and how to ask for less where nothing bounds the answer."""
    gateway = start(settings([engine(stub, 4)], tenants=[tenant("metered", tokens_per_minute={"rate": 6, "burst": 300})]))
    over = message(gateway.post(chat(max_tokens=1000), key=key_of("metered")))
    assert over.startswith("This request may use 10")
    assert over.endswith(" tokens; your limit holds 300 at most.")
    stub.plan = Plan(usage=Usage(10, 98))
    assert gateway.post(chat(max_tokens=98), key=key_of("metered")).status == 200
    body = chat()
    del body["max_tokens"]
    answer = gateway.post(body, key=key_of("metered"))
    assert (answer.status, answer.code) == (429, "rate_limit_tokens")
    assert answer.header("retry-after")
    told = r"This request is expected to use 2\d\d tokens; 192 of your 300 are left \(6 a minute\)\. Set max_tokens to lower it\."
    assert re.fullmatch(told, message(answer))


def test_tenants_are_seen_in_state_and_metrics(stub: Stub, start: Start) -> None:
    """The state tells what each tenant runs and has left, and the metrics count its requests and tokens."""
    gateway = start(settings([engine(stub, 4)], tenants=[tenant("acme", tokens_per_minute={"rate": 6, "burst": 300})]))
    stub.plan = Plan(usage=Usage(10, 90))
    assert gateway.post(chat(max_tokens=90), key=key_of("acme")).status == 200
    assert gateway.post(chat()).status == 200
    gateway.assert_idle()
    state = json.loads(gateway.admin("/admin/state")[1])
    assert (state["ready"], state["reason"], state["classes"][0]["class"]) == (True, "ok", "only")
    acme, anonymous = state["tenants"]
    assert acme == {
        "tenant": "acme",
        "running": 0,
        "waiting": 0,
        "requests_left": None,
        "tokens_left": {"limit": 300, "remaining": 200},
    }
    assert anonymous == {"tenant": "anonymous", "running": 0, "waiting": 0}
    assert gateway.metric("fairlane_tenant_requests_total", tenant="acme", outcome="completed") == 1
    assert gateway.metric("fairlane_tenant_tokens_total", tenant="acme", direction="out") == 90
    assert gateway.metric("fairlane_tenant_requests_total", tenant="anonymous") == 1


def refused_engine(url: str) -> str:
    """Return what is said of an engine's URL that cannot be used."""
    with pytest.raises(EngineError) as refused:
        asyncio.run(settings_for(url))
    return str(refused.value)


def test_an_engine_that_cannot_be_used_is_told_why(stub: Stub) -> None:
    """No scheme, a page below the base URL, an engine that is not there: each error names its cause, and no key."""
    assert refused_engine("localhost:9") == "--engine localhost:9: must start with http:// or https://, or with dns+http:// or dns+https://"
    assert "secret" not in refused_engine("http://me:secret@localhost:9")
    deep = refused_engine(f"{stub.url}/v1/chat/completions")
    assert "answered 404. Give the base URL, such as http://127.0.0.1:9000" in deep
    stub.refuse()
    assert refused_engine(stub.url).startswith(f"no engine answers at {stub.url}: connection refused. ")
    assert asyncio.run(_accepts(stub)) == ("m",)


async def _accepts(stub: Stub) -> tuple[str, ...]:
    await asyncio.to_thread(stub.accept)
    return tuple((await settings_for(f"{stub.url}/v1")).pools[0].aliases)


def test_wrong_arguments_show_the_usage_of_their_command() -> None:
    """Not that of the whole program, which does not have the options of the command."""
    done = subprocess.run([FAIRLANE, "check", "a.yaml", "--jsn"], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: fairlane check ")
    assert "unrecognized arguments: --jsn" in done.stderr
