"""Who a caller is and which class its request gets."""

from __future__ import annotations

import orjson
import pytest

from fairlane.errors import Reason, Refused
from fairlane.gateway.calls.body import CHAT, Call, read
from fairlane.gateway.identity import Caller, Identities
from fairlane.settings import load, parse
from fairlane.settings.keys import hash_key

KEY = "fl-paid-key"
SETTINGS = f"""
tenants:
  - {{name: acme, class: paid, best_class: realtime, key_hashes: ["{hash_key(KEY)}"], models: [small]}}
  - {{name: lowly, class: batch, key_hashes: ["{hash_key("low")}"]}}
  - {{name: trusted, class: paid, best_class: paid, trust_priority: true, key_hashes: ["{hash_key("trust")}"]}}
pools: [{{name: main, models: [small, large], engines: [{{name: e, kind: openai, url: "http://127.0.0.1:9"}}]}}]
"""
RANKS = {"realtime": 0, "paid": 1, "free": 2, "batch": 3}


def head(**headers: str) -> dict[bytes, bytes]:
    """Headers as the wire hands them up."""
    return {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}


def caller_of(identities: Identities, peer: str = "127.0.0.1", **headers: str) -> Caller:
    """Who sends these headers from there."""
    return identities.identify(head(**headers), peer)


def rank(identities: Identities, asked: Call, **headers: str) -> int:
    """The class of a request with this body and these headers."""
    return identities.rank(caller_of(identities, **headers), identities.asked_rank(head(**headers)), asked)


def call(**fields: object) -> Call:
    """A chat body with more fields."""
    return read(CHAT, orjson.dumps({"model": "small", "messages": [{"role": "user", "content": "hi"}], **fields}))


@pytest.fixture(scope="module")
def identities() -> Identities:
    """Three tenants; a key is required."""
    return Identities(parse(SETTINGS, "test.yaml"))


@pytest.mark.parametrize("headers", [{"authorization": f"Bearer {KEY}"}, {"authorization": f"bearer  {KEY}"}, {"x_api_key": KEY}])
def test_a_key_names_its_tenant(identities: Identities, headers: dict[str, str]) -> None:
    """Both usual headers carry a key, and the scheme's case does not matter."""
    caller = caller_of(identities, **headers)
    assert caller.tenant.name == "acme"
    assert caller.may_use("small")
    assert not caller.may_use("large")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {KEY}"},
        {"authorization": ""},
        {"x_api_key": ""},
        {"x_tenant": "acme"},
    ],
)
def test_unknown_and_malformed_keys_look_the_same(identities: Identities, headers: dict[str, str]) -> None:
    """Without a valid key the answer is one and the same 401, whatever is wrong with it."""
    with pytest.raises(Refused) as refused:
        caller_of(identities, **headers)
    assert refused.value.reason is Reason.INVALID_API_KEY
    assert str(refused.value) == "Incorrect or missing API key."


@pytest.mark.parametrize(
    ("key", "headers", "fields", "cls"),
    [
        (KEY, {}, {}, "paid"),
        (KEY, {"x_fairlane_class": "realtime"}, {}, "realtime"),
        (KEY, {"x_fairlane_class": "batch"}, {"service_tier": "priority"}, "batch"),
        (KEY, {}, {"service_tier": "priority"}, "realtime"),
        (KEY, {}, {"service_tier": "flex"}, "batch"),
        (KEY, {}, {"service_tier": "auto"}, "paid"),
        (KEY, {}, {"service_tier": "default"}, "paid"),
        (KEY, {}, {"priority": 0}, "paid"),
        (KEY, {}, {"priority": "x"}, "paid"),
        ("low", {"x_fairlane_class": "realtime"}, {}, "batch"),
        ("low", {}, {"service_tier": "priority"}, "batch"),
        ("low", {"x_priority": "high"}, {"priority": -1000}, "batch"),
        ("trust", {}, {"priority": 3}, "batch"),
        ("trust", {}, {"priority": 99}, "batch"),
        ("trust", {}, {"priority": -5}, "paid"),
        ("trust", {}, {"priority": 0}, "paid"),
        ("trust", {}, {}, "paid"),
    ],
)
def test_a_request_gets_the_class_it_asks_for_as_far_as_it_may(
    identities: Identities, key: str, headers: dict[str, str], fields: dict[str, object], cls: str
) -> None:
    """The header goes before `service_tier`, that before a trusted `priority`, and nothing goes beyond the best class."""
    assert rank(identities, call(**fields), authorization=f"Bearer {key}", **headers) == RANKS[cls]


@pytest.mark.parametrize(
    ("key", "headers", "fields", "param"),
    [
        (KEY, {"x_fairlane_class": "urgent"}, {}, "X-Fairlane-Class"),
        (KEY, {}, {"service_tier": "gold"}, "service_tier"),
        ("trust", {}, {"priority": "high"}, "priority"),
        ("trust", {}, {"priority": 1.5}, "priority"),
    ],
)
def test_unknown_classes_and_tiers_are_refused(
    identities: Identities, key: str, headers: dict[str, str], fields: dict[str, object], param: str
) -> None:
    """A wish that cannot be understood is 400 and names what was wrong."""
    with pytest.raises(Refused) as refused:
        rank(identities, call(**fields), authorization=f"Bearer {key}", **headers)
    assert (refused.value.reason, refused.value.param) == (Reason.INVALID_REQUEST, param)


def test_anonymous_callers_are_told_apart_by_address_alone() -> None:
    """Without tenants a key means nothing; one address is one tenant, and many addresses make at most 64."""
    identities = Identities(load(None))
    one = caller_of(identities, "10.0.0.1", authorization="Bearer sk-habit")
    assert one is caller_of(identities, "10.0.0.1", x_forwarded_for="10.9.9.9")
    names = {caller_of(identities, f"10.0.{i}.{j}").tenant.name for i in range(20) for j in range(50)}
    assert len(names) == 64
    assert one.label == "anonymous"


def test_a_class_in_capitals_is_told_of_the_case(identities: Identities) -> None:
    """Names are exact, and the refusal says so where only the case is wrong."""
    for header, told in (("Realtime", True), ("gold", False)):
        with pytest.raises(Refused) as refused:
            identities.asked_rank(head(x_fairlane_class=header))
        assert ("lower case" in str(refused.value)) == told
