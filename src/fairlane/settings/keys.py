"""Keys of tenants: only their hashes are kept, so that a configuration file opens no door.

A key is 256 random bits. A plain SHA-256 is therefore enough: there is nothing to guess, and it costs a microsecond a
request where a password hash would cost a hundred milliseconds.
"""

import hashlib
import hmac
import secrets

from fairlane.settings.model import Settings, TenantSettings

PREFIX = "sha256:"


def new_key() -> str:
    """A fresh key of 256 random bits."""
    return f"fl-{secrets.token_urlsafe(32)}"


def hash_key(key: str) -> str:
    """The key's hash as `key_hashes` takes it."""
    return PREFIX + _digest(key).hex()


class Keyring:
    """Finds the tenant of a key.

    The look-up goes by digest: how long it takes tells something of the digest, and from a digest nobody gets a key. The
    digest found is compared once more in constant time, so that a match never rests on the look-up alone.
    """

    __slots__ = ("_tenants",)

    def __init__(self, settings: Settings) -> None:
        self._tenants: dict[bytes, tuple[bytes, TenantSettings]] = {}
        for tenant in settings.tenants:
            for text in tenant.key_hashes:
                digest = bytes.fromhex(text.removeprefix(PREFIX))
                self._tenants[digest] = (digest, tenant)

    def tenant_of(self, key: str) -> TenantSettings | None:
        """The tenant that has this key, or None if nobody has; nobody has the empty key, even if its hash is listed."""
        digest = _digest(key)
        known = self._tenants.get(digest)
        return known[1] if known and key and hmac.compare_digest(known[0], digest) else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
