"""Which addresses of a name count, and how they are looked up."""

import asyncio

import pytest

from fairlane.gateway.engines.names import ADDRESSES_MAX, EMPTY_MAX, Addresses, resolve


def taken(*answers: list[str]) -> Addresses:
    """The addresses after these answers."""
    addresses = Addresses()
    for answer in answers:
        addresses.take(answer)
    return addresses


def test_each_answer_is_the_whole_set() -> None:
    """What is new comes in, what is missing goes; order and repetitions mean nothing."""
    assert taken(["b", "a", "b"]).now == ("a", "b")
    assert taken(["b", "a"], ["c", "b"]).now == ("b", "c")


def test_a_name_without_addresses_keeps_them_for_a_while() -> None:
    """Only so many empty answers in a row make the engines go; one with addresses starts the count anew."""
    almost: list[list[str]] = [[]] * (EMPTY_MAX - 1)
    assert taken(["a"], *almost).now == ("a",)
    assert taken(["a"], *almost, ["a"], *almost).now == ("a",)
    assert taken(["a"], *almost, []).now == ()


def test_of_too_many_addresses_the_known_ones_stay() -> None:
    """300 addresses make 256 engines; those that were there first keep their places, and how many are left out is told."""
    many = [f"10.0.{number // 250}.{number % 250}" for number in range(300)]
    addresses = taken(["9.9.9.9", many[-1]], ["9.9.9.9", *many])
    assert (len(addresses.now), addresses.dropped) == (ADDRESSES_MAX, 301 - ADDRESSES_MAX)
    assert addresses.now[:2] == (many[-1], "9.9.9.9")
    assert taken(many, many[:3]).dropped == 0


def test_the_system_resolves_names() -> None:
    """This machine's own name has a loopback address, and a name that cannot exist has none."""
    found = asyncio.run(resolve("localhost", 80))
    assert {"127.0.0.1", "::1"}.intersection(found)
    assert asyncio.run(resolve("127.0.0.2", 80)) == ["127.0.0.2"]


def test_a_name_that_is_none_fails() -> None:
    """What cannot be written as a name at all is an error that whoever asks knows to catch."""
    with pytest.raises((OSError, UnicodeError)):
        asyncio.run(resolve("x" * 64 + ".test", 80))
