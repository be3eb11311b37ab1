"""Error objects and the headers that tell a client when to come back."""

from __future__ import annotations

import re
from decimal import Decimal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.core.tenants import TokenBucket
from fairlane.core.values import BucketRate
from fairlane.errors import RULES, Reason, Refused
from fairlane.gateway.answers import Allowance, allowance, allowance_lines, go_duration, refusal


def headers(lines: bytes) -> dict[bytes, bytes]:
    """Header lines as a mapping; a name may come once."""
    pairs = [tuple(line.split(b": ", 1)) for line in lines.split(b"\r\n") if line]
    assert len({name for name, _ in pairs}) == len(pairs)
    return {name: value for name, value in pairs}  # noqa: C416 - the types


@pytest.mark.parametrize("reason", Reason)
def test_every_refusal_has_the_documented_shape(reason: Reason) -> None:
    """Status and code come from the table; retrying is advised exactly where it can help, in whole seconds of at least 1."""
    status, lines, body = refusal(Refused(reason, retry_after_s=0.2))
    rule = RULES[reason]
    error = orjson.loads(body)["error"]
    found = headers(lines)
    assert status == rule.status
    assert error == {"message": rule.text, "type": rule.error_type, "param": None, "code": reason.value}
    assert found[b"x-fairlane-reason"] == reason.value.encode()
    assert (b"retry-after" in found) == rule.retryable
    assert found.get(b"x-should-retry") == (None if rule.retryable else b"false")
    if rule.retryable:
        assert (found[b"retry-after"], found[b"retry-after-ms"]) == (b"1", b"1000")


@pytest.mark.parametrize(
    ("wait", "seconds", "ms"), [(0.0, b"1", b"1000"), (1.0, b"1", b"1000"), (1.0001, b"2", b"1001"), (3.5, b"4", b"3500")]
)
def test_retry_after_is_rounded_up(wait: float, seconds: bytes, ms: bytes) -> None:
    """Neither form of the hint is earlier than the wait."""
    found = headers(refusal(Refused(Reason.QUEUE_FULL, retry_after_s=wait))[1])
    assert (found[b"retry-after"], found[b"retry-after-ms"]) == (seconds, ms)


def test_what_can_never_pass_says_so() -> None:
    """A request larger than its tenant's whole limit is told not to come back."""
    found = headers(refusal(Refused(Reason.REQUEST_OVER_LIMIT))[1])
    assert found[b"x-should-retry"] == b"false"
    assert b"retry-after" not in found


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        *[(0, b"0ms"), (250, b"250ms"), (999, b"999ms"), (1000, b"1s"), (1001, b"1.001s"), (7660, b"7.66s"), (59_999, b"59.999s")],
        *[(60_000, b"1m0s"), (360_000, b"6m0s"), (3_599_999, b"59m59.999s"), (3_600_000, b"1h0m0s"), (3_723_000, b"1h2m3s")],
    ],
)
def test_durations_are_written_as_go_writes_them(ms: int, text: bytes) -> None:
    """The form that OpenAI's reset headers have."""
    assert go_duration(ms) == text


@given(st.integers(0, 1000 * 3600 * 1000))
def test_a_duration_says_the_very_milliseconds(ms: int) -> None:
    """Nothing is lost in writing, whatever the length."""
    units = {"h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
    parts = re.findall(r"([\d.]+)(ms|[hms])", go_duration(ms).decode())
    assert sum(Decimal(number) * units[unit] for number, unit in parts) == ms


def test_what_is_left_is_told_in_whole_units() -> None:
    """The limit, what is there of it, nothing while an overrun is paid back, and the seconds until all is there."""
    bucket = TokenBucket(BucketRate(10, 100), 0.0)
    assert allowance(bucket, 0.0) == (100, 100, 0.0)
    bucket.give(-95, 0.0)
    assert allowance(bucket, 0.05) == (100, 5, 9.45)
    bucket.give(-95, 0.05)
    assert allowance(bucket, 0.05) == (100, 0, 18.95)
    assert allowance(None, 0.05) is None


def test_only_limits_that_there_are_make_headers() -> None:
    """Three lines for each limit, none without; the time to a full limit is rounded up."""
    requests, tokens = Allowance(60, 12, 1.5), Allowance(100_000, 0, 61.0001)
    of_requests = {
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"12",
        b"x-ratelimit-reset-requests": b"1.5s",
    }
    of_tokens = {
        b"x-ratelimit-limit-tokens": b"100000",
        b"x-ratelimit-remaining-tokens": b"0",
        b"x-ratelimit-reset-tokens": b"1m1.001s",
    }
    assert headers(allowance_lines(requests, None)) == of_requests
    assert headers(allowance_lines(None, tokens)) == of_tokens
    assert headers(allowance_lines(requests, tokens)) == of_requests | of_tokens
    assert allowance_lines(None, None) == b""
