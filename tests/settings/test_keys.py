"""Keys: made at random, kept as hashes, found by digest."""

import hashlib
import re

import pytest

from fairlane.settings import parse
from fairlane.settings.keys import Keyring, hash_key, new_key


def keyring(*hashes: tuple[str, list[str]]) -> Keyring:
    """A ring of tenants, each with its hashes."""
    rows = "".join(f"  - {{name: {name}, class: free, key_hashes: {keys}}}\n" for name, keys in hashes)
    return Keyring(parse(f"tenants:\n{rows}", "f.yaml"))


def test_a_hash_is_the_sha256_of_the_key() -> None:
    """Anyone can compute a hash with common tools: printf %s KEY | sha256sum."""
    assert hash_key("abc") == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert hash_key("schlüssel") == f"sha256:{hashlib.sha256('schlüssel'.encode()).hexdigest()}"


def test_a_new_key_is_random_and_fits_a_header() -> None:
    """A key has 256 bits, a prefix by which leaks are found, and no character that needs quoting anywhere."""
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(re.fullmatch(r"fl-[A-Za-z0-9_-]{43}", key) for key in keys)


def test_each_key_of_a_tenant_finds_it() -> None:
    """A tenant may have several keys, so that one can be replaced without a gap; capital hex digits are the same hash."""
    ring = keyring(("a", [hash_key("k1"), hash_key("k2").upper().replace("SHA", "sha")]), ("b", [hash_key("k3")]))
    found = [ring.tenant_of(key) for key in ("k1", "k2", "k3")]
    assert [one and one.name for one in found] == ["a", "a", "b"]


@pytest.mark.parametrize("key", ["k", "k1 ", "K1", "", hash_key("k1"), hash_key("k1").removeprefix("sha256:"), "\udcff\ud800", "k1\0"])
def test_what_is_no_key_finds_nobody(key: str) -> None:
    """Neither a near miss nor the hash itself nor bytes that are no text open anything."""
    assert keyring(("a", [hash_key("k1")])).tenant_of(key) is None


def test_the_empty_key_is_nobodys() -> None:
    """An empty bearer token gets in nowhere, even where its hash was put into the file by mistake."""
    assert keyring(("a", [hash_key("")])).tenant_of("") is None
