"""Who asks, and in which class: from the key alone, never from what a request says of itself.

A request may ask for another class, by header, by `service_tier` or, where its tenant is trusted, by `priority`. It never
gets a more urgent one than its caller's `best_class`.
"""

import hashlib
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from fairlane.core.values import Tenant
from fairlane.errors import Reason, Refused
from fairlane.gateway.calls.body import Call
from fairlane.settings import Settings, TenantSettings, anonymous_tenant, tenants
from fairlane.settings.keys import Keyring
from fairlane.settings.model import CallerSettings
from fairlane.telemetry.table import ANONYMOUS

CLASS_HEADER = b"x-fairlane-class"
ANONYMOUS_FLOWS = 64  # addresses are hashed to so many tenants, so that callers without a key cannot grow memory
_EVERY_MODEL = "*"
_BEARER = b"bearer "


@dataclass(frozen=True)
class Caller:
    """A known caller: the tenant that is charged and what it may ask for. `label` is its name in metrics and logs."""

    tenant: Tenant
    label: str
    rank: int
    best_rank: int
    trust_priority: bool = False
    models: frozenset[str] | None = None  # None: every model

    def may_use(self, model: str) -> bool:
        """Whether the caller's key opens this model."""
        return self.models is None or model in self.models


class Identities:
    """All callers of one configuration."""

    def __init__(self, settings: Settings) -> None:
        self._ranks = {c.name: rank for rank, c in enumerate(settings.classes)}
        self._by_header = {name.encode(): rank for name, rank in self._ranks.items()}
        self._last = len(self._ranks) - 1
        self._keyring = Keyring(settings)
        specs = tenants(settings)
        self._tenants = {t.name: self._caller(t, specs[t.name], t.name) for t in settings.tenants}
        self._anonymous: list[Caller] = []
        if settings.anonymous is not None:
            flows = (anonymous_tenant(settings, flow) for flow in range(ANONYMOUS_FLOWS))
            self._anonymous = [self._caller(settings.anonymous, tenant, ANONYMOUS) for tenant in flows]

    def identify(self, headers: Mapping[bytes, bytes], peer: str) -> Caller:
        """The caller with the key in `authorization` or `x-api-key`, or the anonymous one of this address.

        Where no tenant is configured a key means nothing and is not looked at, since clients send one by habit.
        """
        key = _key(headers)
        if key is not None and self._tenants:
            tenant = self._keyring.tenant_of(key)
            if tenant is None:
                raise Refused(Reason.INVALID_API_KEY)
            return self._tenants[tenant.name]
        if not self._anonymous:
            raise Refused(Reason.INVALID_API_KEY)
        digest = hashlib.blake2b(_network(peer).encode(), digest_size=2).digest()
        return self._anonymous[int.from_bytes(digest) % ANONYMOUS_FLOWS]

    def rank(self, caller: Caller, by_header: int | None, call: Call) -> int:
        """The class that the request gets: what it asks for, in its head before its body, as far as its caller may."""
        asked = by_header if by_header is not None else self._asked(caller, call)
        return max(caller.best_rank, asked)

    def asked_rank(self, headers: Mapping[bytes, bytes]) -> int | None:
        """The class that a head names; None where it names none."""
        header = headers.get(CLASS_HEADER)
        if header is None:
            return None
        rank = self._by_header.get(header)
        if rank is None:
            classes = ", ".join(self._ranks)
            case = " Names are in lower case." if header.lower() in self._by_header else ""
            raise Refused(Reason.INVALID_REQUEST, f"X-Fairlane-Class must be one of: {classes}.{case}", param="X-Fairlane-Class")
        return rank

    def _asked(self, caller: Caller, call: Call) -> int:
        if call.service_tier is None and not caller.trust_priority:
            return caller.rank
        if caller.trust_priority and call.bad_priority:
            raise Refused(Reason.INVALID_REQUEST, "'priority' must be a whole number; 0 is the most urgent.", param="priority")
        match call.service_tier:
            case None | "auto" | "default":
                pass
            case "priority":
                return caller.best_rank
            case "flex":
                return self._last
            case _:
                raise Refused(Reason.INVALID_REQUEST, "'service_tier' must be one of: auto, default, flex, priority.", param="service_tier")
        if caller.trust_priority and call.priority is not None:
            return min(max(call.priority, 0), self._last)
        return caller.rank

    def _caller(self, settings: CallerSettings, tenant: Tenant, label: str) -> Caller:
        rank = self._ranks[settings.class_name]
        best = min(rank, self._ranks[settings.best_class])
        if not isinstance(settings, TenantSettings):
            return Caller(tenant, label, rank, best)
        models = None if _EVERY_MODEL in settings.models else frozenset(settings.models)
        return Caller(tenant, label, rank, best, settings.trust_priority, models)


def _network(peer: str) -> str:
    """What one anonymous caller has of its own: an IPv4 address, or the /64 that an IPv6 address is in."""
    if ":" not in peer or peer.startswith("::ffff:"):
        return peer
    packed = ipaddress.IPv6Address(peer.partition("%")[0]).packed
    return packed[:8].hex()


def _key(headers: Mapping[bytes, bytes]) -> str | None:
    """The key that a client presents: a bearer token, or Anthropic's header."""
    authorization = headers.get(b"authorization")
    if authorization is not None:
        scheme, token = authorization[: len(_BEARER)], authorization[len(_BEARER) :]
        return token.strip().decode("utf-8", "surrogateescape") if scheme.lower() == _BEARER else ""
    key = headers.get(b"x-api-key")
    return None if key is None else key.decode("utf-8", "surrogateescape")
