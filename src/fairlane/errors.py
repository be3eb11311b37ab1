"""Every way in which Fairlane says no, and the one table that gives each its meaning on the wire.

A `Reason` names why a request ended without an answer from an engine. Its `Rule` says which HTTP status it has,
to which family it belongs and whether coming back can help. Code raises or returns reasons; only the edge turns
them into text.
"""

from dataclasses import dataclass
from enum import StrEnum


class FairlaneError(Exception):
    """Base of every exception that Fairlane raises on purpose."""


class SettingsError(FairlaneError):
    """The configuration cannot be used; `problems` holds one line for each fault."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class EngineError(FairlaneError):
    """An engine could not be started or reached; the text says which, and what to do."""


class Family(StrEnum):
    """When a request was shed, and by whose doing."""

    INVALID = "invalid"  # the request itself is wrong: no queue was ever asked
    REJECTED = "rejected"  # refused before it entered the backlog
    EVICTED = "evicted"  # taken out of the backlog
    UPSTREAM = "upstream"  # an engine had it and failed


class Reason(StrEnum):
    """Why a request was not answered by an engine. The value is the `error.code` that clients see."""

    INVALID_REQUEST = "invalid_request"
    BODY_TOO_LARGE = "body_too_large"
    HEADERS_TOO_LARGE = "headers_too_large"
    INVALID_API_KEY = "invalid_api_key"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    REQUEST_OVER_LIMIT = "request_over_limit"
    RATE_LIMIT_REQUESTS = "rate_limit_requests"
    RATE_LIMIT_TOKENS = "rate_limit_tokens"
    TENANT_QUEUE_FULL = "tenant_queue_full"
    QUEUE_FULL = "queue_full"
    WAIT_TOO_LONG = "wait_too_long"
    DISPLACED = "displaced"
    WAIT_EXPIRED = "wait_expired"
    DEADLINE_MISSED = "deadline_missed"
    NO_ENGINE = "no_engine"
    DRAINING = "draining"
    ENGINE_UNREACHABLE = "engine_unreachable"
    ENGINE_FAILED = "engine_failed"
    ENGINE_TIMEOUT = "engine_timeout"
    INTERNAL = "internal_error"


@dataclass(frozen=True)
class Rule:
    """What a reason means on the wire."""

    status: int
    family: Family
    retryable: bool
    error_type: str
    text: str


def _invalid(status: int, text: str, error_type: str = "invalid_request_error") -> Rule:
    return Rule(status, Family.INVALID, retryable=False, error_type=error_type, text=text)


def _own_limit(text: str) -> Rule:
    return Rule(429, Family.REJECTED, retryable=True, error_type="rate_limit_error", text=text)


def _contended(family: Family, text: str) -> Rule:
    return Rule(429, family, retryable=True, error_type="rate_limit_error", text=text)


def _unserved(status: int, family: Family, text: str) -> Rule:
    return Rule(status, family, retryable=True, error_type="server_error", text=text)


RULES: dict[Reason, Rule] = {
    Reason.INVALID_REQUEST: _invalid(400, "The request is not valid."),
    Reason.BODY_TOO_LARGE: _invalid(413, "The request body is larger than this gateway accepts."),
    Reason.HEADERS_TOO_LARGE: _invalid(431, "The request headers are larger than this gateway accepts."),
    Reason.INVALID_API_KEY: _invalid(401, "Incorrect or missing API key.", "authentication_error"),
    Reason.MODEL_NOT_FOUND: _invalid(404, "The model does not exist or you do not have access to it."),
    Reason.NOT_FOUND: _invalid(404, "Unknown path."),
    Reason.METHOD_NOT_ALLOWED: _invalid(405, "This path does not take that method."),
    Reason.CONTEXT_LENGTH_EXCEEDED: _invalid(400, "The request is longer than any engine of this model can take."),
    Reason.REQUEST_OVER_LIMIT: Rule(
        429, Family.REJECTED, retryable=False, error_type="rate_limit_error", text="The request needs more than your whole limit."
    ),
    Reason.RATE_LIMIT_REQUESTS: _own_limit("Your limit of requests is used up."),
    Reason.RATE_LIMIT_TOKENS: _own_limit("Your limit of tokens is used up."),
    Reason.TENANT_QUEUE_FULL: _own_limit("You have as many requests waiting as you may."),
    Reason.QUEUE_FULL: _contended(Family.REJECTED, "Too many requests are waiting in this class."),
    Reason.WAIT_TOO_LONG: _contended(Family.REJECTED, "The wait would be longer than this class allows."),
    Reason.DISPLACED: _contended(Family.EVICTED, "The queue is full, and others were to be served before this request."),
    Reason.WAIT_EXPIRED: _contended(Family.EVICTED, "The request waited as long as its class allows."),
    Reason.DEADLINE_MISSED: _contended(Family.EVICTED, "The first token would come later than this class promises."),
    Reason.NO_ENGINE: _unserved(503, Family.REJECTED, "No engine can serve this model now."),
    Reason.DRAINING: _unserved(503, Family.EVICTED, "This gateway is shutting down."),
    Reason.ENGINE_UNREACHABLE: _unserved(503, Family.UPSTREAM, "The engine could not be reached."),
    Reason.ENGINE_FAILED: _unserved(502, Family.UPSTREAM, "The engine broke off or sent something that is not HTTP."),
    Reason.ENGINE_TIMEOUT: _unserved(504, Family.UPSTREAM, "The engine did not answer in time."),
    Reason.INTERNAL: Rule(500, Family.UPSTREAM, retryable=False, error_type="server_error", text="Something went wrong in this gateway."),
}


class Refused(FairlaneError):
    """A request that gets an error answer of ours. `param` names the faulty field, `message` replaces the rule's text."""

    def __init__(self, reason: Reason, message: str | None = None, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message or RULES[reason].text)
        self.reason = reason
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def rule(self) -> Rule:
        """The reason's row of the table."""
        return RULES[self.reason]
