"""The answers that Fairlane itself gives: error objects, and the headers that tell a client when to come back."""

from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

import orjson

from fairlane.core.tenants import TokenBucket
from fairlane.errors import RULES, Reason, Refused
from fairlane.gateway.wire.exchange import Refusal

JSON = b"content-type: application/json\r\n"
_REQUESTS_LEFT = b"x-ratelimit-limit-requests: %d\r\nx-ratelimit-remaining-requests: %d\r\nx-ratelimit-reset-requests: %b\r\n"
_TOKENS_LEFT = _REQUESTS_LEFT.replace(b"requests", b"tokens")


def error_body(reason: Reason, message: str, param: str | None = None) -> bytes:
    """OpenAI's error object."""
    error = {"message": message, "type": RULES[reason].error_type, "param": param, "code": reason.value}
    return orjson.dumps({"error": error})


def refusal(refused: Refused, more: bytes = b"") -> Refusal:
    """Status, header lines and body of a refusal, with the lines `more` added."""
    rule = refused.rule
    lines = b"%b%bx-fairlane-reason: %b\r\n%b" % (JSON, more, refused.reason.value.encode(), retry_lines(refused))
    if rule.status == RULES[Reason.INVALID_API_KEY].status:
        lines += b"www-authenticate: Bearer\r\n"
    return rule.status, lines, error_body(refused.reason, str(refused), refused.param)


def retry_lines(refused: Refused) -> bytes:
    """When to come back, rounded up and never below one second; or that coming back cannot help."""
    if not refused.rule.retryable:
        return b"x-should-retry: false\r\n"
    wait = max(1.0, refused.retry_after_s or 1.0)
    seconds = ceil(wait)
    return b"retry-after: %d\r\nretry-after-ms: %d\r\n" % (seconds, max(1000, ceil(wait * 1000)))


def go_duration(milliseconds: int) -> bytes:
    """A duration as Go prints it and OpenAI's headers carry it: 250ms, 7.66s, 6m0s, 1h2m3s."""
    if milliseconds < 1000:
        return b"%dms" % milliseconds
    if milliseconds < 60_000:
        return b"%gs" % (milliseconds / 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    seconds = milliseconds / 1000
    return b"%dh%dm%gs" % (hours, minutes, seconds) if hours else b"%dm%gs" % (minutes, seconds)


class Allowance(NamedTuple):
    """What is left of a rate limit, in whole units, and the time until it is whole again."""

    limit: int
    remaining: int
    reset_s: float


def allowance(bucket: TokenBucket | None, now: float) -> Allowance | None:
    """What is left in a bucket, nothing while an overrun is paid back; None where there is no limit."""
    if bucket is None:
        return None
    rate, level = bucket.rate, bucket.level(now)
    return Allowance(int(rate.burst), int(level) if level > 0.0 else 0, (rate.burst - level) / rate.per_s)


def allowance_lines(requests: Allowance | None, tokens: Allowance | None) -> bytes:
    """The `x-ratelimit-*` lines of the limits that there are: what is left of each."""
    lines = b""
    if requests is not None:
        limit, remaining, reset_s = requests
        lines = _REQUESTS_LEFT % (limit, remaining, go_duration(ceil(reset_s * 1000)))
    if tokens is not None:
        limit, remaining, reset_s = tokens
        lines += _TOKENS_LEFT % (limit, remaining, go_duration(ceil(reset_s * 1000)))
    return lines


def models_body(models: Iterable[str]) -> bytes:
    """OpenAI's list of models."""
    return orjson.dumps({"object": "list", "data": [{"id": m, "object": "model", "created": 0, "owned_by": "fairlane"} for m in models]})


def model_body(model: str) -> bytes:
    """OpenAI's description of one model."""
    return orjson.dumps({"id": model, "object": "model", "created": 0, "owned_by": "fairlane"})
