"""The types that the settings are made of: names, addresses, hashes, fractions.

A type that pydantic would report as two faults ("neither a number nor a word") is wrapped, so that each place has one
fault with one plain text. No text here repeats the value: it may be a secret.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from fairlane.engines import address

BURST_FACTOR = 2.5
"""Bucket capacity by default, in minutes of the rate: wide enough for a burst of one client, narrow enough to matter."""

PORT_MAX = 65_535

SHARE_UNITS = 10_000
"""A minimum share is kept in basis points, so that sums of shares are exact."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class Section(BaseModel):
    """One mapping of the file: frozen, with no other keys than its own and no conversion between types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Derived:
    """The default of a field that follows from another field, in words for the reference."""

    text: str


def fault(text: str) -> PydanticCustomError:
    """The one fault of a place; the text continues "KEY: …"."""
    return PydanticCustomError("fairlane", "{text}", {"text": text})


def _as_one(text: str) -> WrapValidator:
    def validate(value: object, inner: ValidatorFunctionWrapHandler) -> object:
        try:
            return inner(value)
        except ValidationError:
            raise fault(text) from None

    return WrapValidator(validate)


def _whole(check: Callable[[str], str | None]) -> AfterValidator:
    """`check` returns what is wrong with the text, or None."""

    def validate(value: str) -> str:
        wrong = check(value)
        if wrong:
            raise fault(wrong)
        return value

    return AfterValidator(validate)


def split_address(text: str) -> tuple[str, int]:
    """Host and port of `127.0.0.1:8080` or `[::1]:8080`.

    Raises:
        ValueError: the text is no such address; a missing host is not taken for "every interface".
    """
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    plain = bare and not re.search(r"[\s/\[\]@]", bare) and (":" not in bare or bare != host)
    if not (colon and plain and port.isascii() and port.isdigit()):
        raise ValueError("must be HOST:PORT, such as 127.0.0.1:8080")
    if len(port) > 5 or int(port) > PORT_MAX:
        raise ValueError(f"must have a port from 0 to {PORT_MAX}")
    return bare, int(port)


def _path_fault(text: str) -> str | None:
    return "must not have control characters" if _CONTROL.search(text) else None


def _address_fault(text: str) -> str | None:
    try:
        split_address(text)
    except ValueError as error:
        return str(error)
    return None


def _url_fault(text: str) -> str | None:
    try:
        address.parse(text)
    except address.AddressError as error:
        return str(error).removeprefix("the URL of an engine ")
    return None


def _api_key_fault(text: str) -> str | None:
    printable = text.isascii() and text.isprintable() and " " not in text
    return None if printable else "has characters that an HTTP header cannot carry, such as a space or a line end"


def _tenant_name_fault(text: str) -> str | None:
    if text == "anonymous" or text.startswith("anonymous-"):
        return "is a name kept for callers without a key"
    return "must be one line without control characters" if _CONTROL.search(text) else None


def _class_name_fault(text: str) -> str | None:
    return "is a name kept for requests refused before their class is known" if text == "none" else None


def _model_name_fault(text: str) -> str | None:
    return "must be one line without control characters" if _CONTROL.search(text) else None


def _one_process(workers: int) -> int:
    if workers != 1:
        raise fault("must be 1: several workers are not available in this version")
    return workers


def _in_basis_points(share: float) -> float:
    if abs(share * SHARE_UNITS - round(share * SHARE_UNITS)) > 1e-6:
        raise fault("must have at most 4 decimals")
    return share


def _rate_from_number(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"rate": value}
    if isinstance(value, dict):
        return value
    raise fault("must be a number or a mapping {rate: …, burst: …}")


def _models_as_list(value: object) -> object:
    entries = (value,) if isinstance(value, dict) else value
    if not isinstance(entries, tuple):
        raise fault("must be a list of model names or {alias: engine-name} mappings")
    return tuple({entry: entry} if isinstance(entry, str) else entry for entry in entries)


class RateLimit(Section):
    """A token bucket: `rate` refills it, `burst` is what it holds."""

    rate: float = Field(gt=0, le=1e12, description="Average rate per minute; `0` would bar the caller, so it is refused.")
    burst: Annotated[float, Derived("2.5 × `rate`, at least 1")] = Field(
        default_factory=lambda known: max(1.0, BURST_FACTOR * known.get("rate", 0.0)),
        ge=1,
        le=1e13,
        description="Capacity of the bucket: what may be used at once after a pause; two to three minutes of the rate allow bursts.",
    )


_NAME_TEXT = "must be a name: letters, digits, '.', '_' or '-', beginning with a letter or digit, at most 64 characters"
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"), _as_one(_NAME_TEXT)]
ClassName = Annotated[Name, _whole(_class_name_fault)]
TenantName = Annotated[str, Field(min_length=1, max_length=100), _whole(_tenant_name_fault)]
ModelName = Annotated[str, Field(min_length=1, max_length=200), _whole(_model_name_fault)]
ListenAddress = Annotated[str, _as_one('must be HOST:PORT in quotes, such as "127.0.0.1:8080"'), _whole(_address_fault)]
EngineUrl = Annotated[str, _whole(_url_fault)]
FilePath = Annotated[str, Field(min_length=1), _whole(_path_fault)]
ApiKey = Annotated[str, Field(min_length=1), _whole(_api_key_fault)]
KeyHash = Annotated[
    str,
    Field(pattern=r"^sha256:[0-9A-Fa-f]{64}$"),
    _as_one("must be a hash, 'sha256:' and 64 hex digits, never the key itself (run 'fairlane hash-key')"),
]
Workers = Annotated[int, Field(ge=1, json_schema_extra={"maximum": 1}), AfterValidator(_one_process)]
Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1), AfterValidator(_in_basis_points)]
Slots = Annotated[Literal["auto"] | Annotated[int, Field(ge=1)], _as_one("must be 'auto' or a whole number of at least 1")]
RunningShare = Annotated[
    Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, le=1)],
    _as_one("must be a whole number of at least 1, or a fraction of the pool's slots above 0.0, at most 1.0"),
]
Rate = Annotated[RateLimit, BeforeValidator(_rate_from_number, json_schema_input_type=RateLimit | Annotated[float, Field(gt=0)])]
Models = Annotated[
    tuple[Annotated[dict[ModelName, ModelName], Field(min_length=1)], ...],
    Field(min_length=1),
    BeforeValidator(_models_as_list, json_schema_input_type=list[str | dict[str, str]] | dict[str, str]),
]
