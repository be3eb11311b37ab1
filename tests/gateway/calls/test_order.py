"""What engines are told of the order: exact, and what it makes of a queue inside an engine."""

import orjson
import pytest

from fairlane.core.request import Request
from fairlane.core.values import Tenant
from fairlane.errors import Refused
from fairlane.gateway.calls.body import CHAT, read, rewrite
from fairlane.gateway.calls.order import engine_id, stamp, xargs

STEP_US = 5_000_000
NOW_US = 1_800_000_000_000_000


def request(rank: int, *, owed: bool = False) -> Request:
    """A request that was started."""
    made = Request(1, Tenant("Zürich"), "main", rank, "m", 10, 8, 18, 10, 18, 0.0)
    made.owed, made.cost, made.key = owed, 42, 12.5
    return made


@pytest.mark.parametrize(("rank", "owed", "later"), [(0, False, 0), (3, False, 15_000_000), (3, True, 0)])
def test_the_stamp_is_the_time_and_a_step_for_each_rank_that_is_owed_nothing(rank: int, later: int, *, owed: bool) -> None:
    """A class behind its guarantee counts as of the moment of its dispatch, any other its rank later."""
    assert stamp(request(rank, owed=owed), NOW_US, STEP_US) == NOW_US + later


def test_urgent_requests_overtake_by_a_bounded_time() -> None:
    """A request of the first class runs before one of the last that was sent 14 s earlier, and after one sent 16 s earlier."""
    urgent = stamp(request(0), NOW_US, STEP_US)
    assert urgent < stamp(request(3), NOW_US - 14_000_000, STEP_US)
    assert urgent > stamp(request(3), NOW_US - 16_000_000, STEP_US)


def test_ours_come_beside_the_clients_arguments() -> None:
    """What a client writes in our names is gone before, so ours are the only ones."""
    body = b'{"model":"m","messages":[{}],"vllm_xargs":{"a":[1,"b"],"fairlane_key":-9,"fairl\\u0061ne_more":1}}'
    assert orjson.loads(xargs(request(2), read(CHAT, body))) == {
        "a": [1, "b"],
        "fairlane_class": 2,
        "fairlane_tenant": "Zürich",
        "fairlane_cost": 42,
        "fairlane_key": 12.5,
        "fairlane_output": 8,
    }


@pytest.mark.parametrize("more", ["", ',"fairlane_key":-9', ',"fairl\\u0061ne_key" : 9 '])
def test_the_clients_arguments_stay_as_they_were_written(more: str) -> None:
    """An integer beyond 64 bits and a number with zeros keep their digits, whether or not something of ours was taken out."""
    theirs = '"a": 123456789012345678901234567890, "b":{"c": 1.500}, "d":"\\u00fc"'
    body = f'{{"model":"m","messages":[{{}}],"vllm_xargs": {{ {theirs}{more} }} }}'.encode()
    call = read(CHAT, body)
    assert xargs(request(2), call).startswith(b"{" + theirs.encode() + b',"fairlane_class":2,')
    kept = rewrite(body, call, model=None, drop=frozenset(), set_fields={})
    assert theirs.encode() in kept
    assert b"fairl" not in kept


def test_no_arguments_of_the_client_leave_only_ours() -> None:
    """Without any, with none left, and with null."""
    for given in (b"", b',"vllm_xargs":{}', b',"vllm_xargs":{"fairlane_key":1}', b',"vllm_xargs":null'):
        assert len(orjson.loads(xargs(request(2), read(CHAT, b'{"model":"m","messages":[{}]%b}' % given)))) == 5


def test_too_many_arguments_are_refused() -> None:
    """Each is looked at, so what would hold up all others is refused, also where they have one name."""
    with pytest.raises(Refused) as refused:
        read(CHAT, b'{"model":"m","messages":[{}],"vllm_xargs":{%b}}' % b",".join([b'"a":1'] * 1001))
    assert refused.value.param == "vllm_xargs"


def test_an_engine_gets_an_id_that_nobody_can_guess() -> None:
    """It begins with the one that the caller knows, and no two are alike even for the same one."""
    ids = {engine_id("r.1") for _ in range(100)}
    assert len(ids) == 100
    assert {len(one) for one in ids} == {len("r.1-") + 32}
    assert all(one.startswith(b"r.1-") for one in ids)
