"""The settings as typed, frozen values. Building them opens and configures nothing.

Each field's description is also its entry in the JSON Schema and in the configuration reference. `SECTIONS` lists where
in the file each mapping stands. Only what this version enforces is here: a setting that does nothing is refused.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from fairlane.settings.fields import (
    ClassName,
    Derived,
    FilePath,
    KeyHash,
    ListenAddress,
    ModelName,
    Rate,
    RateLimit,
    RunningShare,
    Seconds,
    Section,
    Share,
    TenantName,
    Workers,
    split_address,
)
from fairlane.settings.pools import EngineSettings, FastLaneSettings, PoolSettings

DEMONSTRATION_MODEL = "smollm2-135m"

_CLASSES_BY_DEFAULT: tuple[dict[str, Any], ...] = (
    {"name": "realtime", "min_share": 0.30, "max_wait_s": 8.0, "max_queued": 200},
    {"name": "paid", "min_share": 0.15, "max_wait_s": 20.0, "max_queued": 500},
    {"name": "free", "min_share": 0.10, "max_wait_s": 60.0, "max_queued": 500},
    {"name": "batch", "min_share": 0.10, "max_wait_s": 86400.0, "max_queued": 100_000},
)


class ServerSettings(Section):
    """Where Fairlane listens and what it takes from a client."""

    listen: ListenAddress = Field(
        default="127.0.0.1:8080",
        description="Address for clients, HOST:PORT; loopback until you choose otherwise, port 0 picks a free one.",
    )
    admin_listen: ListenAddress = Field(
        default="127.0.0.1:8081",
        description="Address for health, metrics and state, HOST:PORT; apart from the clients' because it asks for no key.",
    )
    max_body_bytes: int = Field(
        default=33_554_432, ge=1, description="Largest request body in bytes; 32 MiB holds a long conversation with a few images."
    )
    max_connections: int = Field(
        default=10_000,
        ge=1,
        description="Most client connections at once; beyond it a client gets 503, so that memory and file descriptors last.",
    )
    drain_s: float = Field(
        default=60.0,
        ge=0,
        description="Seconds in which waiting and running requests may still end after SIGTERM; longer than most answers take.",
    )
    workers: Workers = Field(
        default=1, description="Processes that serve; only 1 in this version, because one scheduler must see every request."
    )
    access_log: bool = Field(default=True, description="Whether to log one line a request; on, because refusals are explained there.")

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port for clients."""
        return split_address(self.listen)

    @property
    def admin_address(self) -> tuple[str, int]:
        """Host and port of the admin pages."""
        return split_address(self.admin_listen)


class BacklogSettings(Section):
    """Bounds on everything that waits."""

    max_queued: int = Field(
        default=200_000,
        ge=1,
        description="Most requests that wait in all pools and classes together; bounds the memory that a flood can take.",
    )


class ClassSettings(Section):
    """A priority class; the order of the list is the priority, the first is the most urgent."""

    name: ClassName = Field(description="Name for the `X-Fairlane-Class` header, metrics and tenants' `class`.")
    min_share: Share = Field(
        default=0.0,
        description="Part of the served cost that the class gets at least while it has requests waiting, at most 4 decimals; "
        "`0` guarantees nothing. All classes together may have at most 1.",
    )
    max_wait_s: Seconds = Field(default=60.0, description="Longest wait in seconds; a request that would wait longer is refused at once.")
    ttft_slo_s: Seconds | None = Field(
        default=None,
        description="Time to first token to be kept, in seconds; a wait that would break it ends the request, unless `shed: wait`. "
        "Policy `gmp` keeps room for the most urgent class that has one, as much as it is found to need. "
        "None by default: only `max_wait_s` holds.",
    )
    shed: Literal["deadline", "wait"] = Field(
        default="deadline", description="`deadline`: refuse what cannot meet `ttft_slo_s`; `wait`: a late answer is wanted all the same."
    )
    max_queued: int = Field(default=1000, ge=0, description="Most requests of the class that wait in a pool; beyond it 429.")
    max_queued_cost: int | None = Field(
        default=None,
        ge=1,
        description="Most cost (weighted tokens) of the class that waits in a pool; no limit by default, for `max_queued` bounds it.",
    )
    max_running: RunningShare | None = Field(
        default=None,
        description="Most requests of the class that run in a pool: a number, or a fraction of the pool's slots with a point (`0.5`). "
        "No limit by default, for an idle slot helps nobody.",
    )
    promote_after_s: Seconds | None = Field(
        default=None,
        description="Seconds after which a waiting request competes one class higher, never more; off by default, because `min_share` "
        "guarantees service without disturbing the order.",
    )
    yield_waste: float = Field(
        default=0.0,
        ge=0,
        le=0.5,
        description="For the last class: part of all served tokens, and 16384 besides, that may be wasted so that more urgent requests "
        "start at once. Where one finds no place, the newest running request of this class that is not a tenth done, and of which its "
        "client has nothing, is stopped and waits again, twice at most; only with the policies `gmp` and `strict`. `0` stops none, for "
        "each costs work.",
    )
    short_first_s: Annotated[float, Derived("`max_wait_s` / 8, within 1 and 600")] = Field(
        default_factory=lambda known: min(600.0, max(1.0, known.get("max_wait_s", 0.0) / 8)),
        ge=0,
        description="Seconds by which a short request may overtake earlier ones of its own tenant; bounded, so that long ones age.",
    )
    retry_after_min_s: Annotated[float, Derived("`max_wait_s` / 30, within 1 and 30")] = Field(
        default_factory=lambda known: min(30.0, max(1.0, known.get("max_wait_s", 0.0) / 30)),
        gt=0,
        description="Least Retry-After in seconds; sooner a refused client would mostly meet the same queue.",
    )
    retry_after_max_s: Annotated[float, Derived("1.5 × `max_wait_s`, within 10 and 3600")] = Field(
        default_factory=lambda known: min(3600.0, max(10.0, 1.5 * known.get("max_wait_s", 0.0))),
        gt=0,
        description="Greatest Retry-After in seconds, before the random part that keeps refused clients from returning as one wave.",
    )


class SchedulingSettings(Section):
    """How requests are ordered and what they cost."""

    policy: Literal["gmp", "strict", "weighted", "fifo", "aging"] = Field(
        default="gmp",
        description="Order of requests; `gmp`: guaranteed minimum shares, the rest by priority; `strict`: by priority alone; "
        "`weighted`: the classes' shares as weights; `fifo`: by arrival; `aging`: by priority, where 10 s of waiting make up for a class.",
    )
    input_weight: int = Field(default=1, ge=1, le=1000, description="Cost of one prompt token.")
    output_weight: int = Field(
        default=4, ge=1, le=1000, description="Cost of one output token; four times a prompt token's, near the usual tariffs."
    )


class PredictorSettings(Section):
    """What foretells the length of answers; it learns from them with or without these files."""

    state_file: FilePath | None = Field(
        default=None,
        description="File that keeps what was learned over a restart, from the working directory; written every few minutes and at a "
        "stop. None by default: each start begins with nothing learned.",
    )
    model_file: FilePath | None = Field(
        default=None,
        description="Model that `fairlane predict train` wrote, from the working directory; heard only while it is better than what was "
        "learned without it. None by default, for few need one.",
    )


class CallerSettings(Section):
    """What a caller may do, with a key or without."""

    class_name: str = Field(alias="class", description="Class of the caller's requests unless they ask for another.")
    best_class: Annotated[str, Derived("the own class")] = Field(
        default_factory=lambda known: known.get("class_name", ""), description="Most urgent class that a request may ask for."
    )
    weight: float = Field(
        default=1.0, ge=0.01, le=10_000, description="Share beside the other callers of the class, as a ratio; equal by default."
    )
    max_running: int | None = Field(
        default=None, ge=1, description="Most requests that run at once, in all pools together; more of them wait. No limit by default."
    )
    max_queued: int | None = Field(
        default=None, ge=0, description="Most requests that wait; beyond it 429. By default only the class's own limit holds."
    )
    requests_per_minute: Rate | None = Field(default=None, description="Limit of requests; a plain number is the rate. None by default.")
    tokens_per_minute: Rate | None = Field(
        default=None,
        description="Limit of prompt and output tokens, charged by estimate, settled by use; a plain number is the rate. None by default.",
    )


class TenantSettings(CallerSettings):
    """A caller with keys."""

    name: TenantName = Field(description="Name in metrics, logs and state.")
    key_hashes: tuple[KeyHash, ...] = Field(
        min_length=1,
        repr=False,
        description="Hashes of the tenant's keys, from `fairlane hash-key`; the keys themselves stay out of the file.",
    )
    models: tuple[ModelName, ...] = Field(("*",), min_length=1, description="Models that the tenant may use; `*` is every model.")
    trust_priority: bool = Field(
        default=False,
        description="Whether `priority` in the body chooses the class (0 is the most urgent); off, because anyone can write it.",
    )


class AnonymousSettings(CallerSettings):
    """Callers without a key: each limit holds for each address (hashed to 64 flows), not for all of them together."""


def _pools_by_default() -> tuple[PoolSettings, ...]:
    engine = {"name": "local", "kind": "embedded"}
    return (PoolSettings.model_validate({"name": "main", "models": (DEMONSTRATION_MODEL,), "engines": (engine,)}),)


def _classes_by_default() -> tuple[ClassSettings, ...]:
    return tuple(ClassSettings.model_validate(one) for one in _CLASSES_BY_DEFAULT)


class Settings(Section):
    """The whole configuration."""

    server: ServerSettings = Field(default_factory=ServerSettings, description="Where Fairlane listens and what it takes from a client.")
    pools: Annotated[tuple[PoolSettings, ...], Derived("one pool `main` with the embedded engine")] = Field(
        default_factory=_pools_by_default, min_length=1, description="The engines, grouped by what they serve."
    )
    backlog: BacklogSettings = Field(default_factory=BacklogSettings, description="Bounds on everything that waits.")
    classes: Annotated[tuple[ClassSettings, ...], Derived("`realtime`, `paid`, `free`, `batch`")] = Field(
        default_factory=_classes_by_default, min_length=1, description="Priority classes, the most urgent first."
    )
    scheduling: SchedulingSettings = Field(default_factory=SchedulingSettings, description="How requests are ordered and what they cost.")
    predictor: PredictorSettings = Field(default_factory=PredictorSettings, description="How the length of answers is foretold.")
    tenants: tuple[TenantSettings, ...] = Field(default=(), description="Callers with keys.")
    anonymous: AnonymousSettings | None = Field(default=None, description="Callers without a key; absent from a file, a key is required.")


SECTIONS: tuple[tuple[str, type[Section]], ...] = (
    ("", Settings),
    ("server", ServerSettings),
    ("pools[]", PoolSettings),
    ("pools[].engines[]", EngineSettings),
    ("pools[].fast_lane", FastLaneSettings),
    ("backlog", BacklogSettings),
    ("classes[]", ClassSettings),
    ("scheduling", SchedulingSettings),
    ("predictor", PredictorSettings),
    ("tenants[]", TenantSettings),
    ("tenants[].requests_per_minute", RateLimit),
    ("tenants[].tokens_per_minute", RateLimit),
    ("anonymous", AnonymousSettings),
    ("anonymous.requests_per_minute", RateLimit),
    ("anonymous.tokens_per_minute", RateLimit),
)


def keys_of(section: type[Section]) -> tuple[str, ...]:
    """The keys of a section as they are written in the file."""
    return tuple(field.alias or name for name, field in section.model_fields.items())
