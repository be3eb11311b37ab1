"""A mapping that forgets what was not used for long, so that whoever sends many names fills no memory with them.

It has two generations. What is used belongs to the newer one, and when that has half of the entries that may be kept, the older
one is forgotten. So what is in use stays, at least the last half is known at any time, and no use has to put anything in order.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """At most so many values by their keys."""

    __slots__ = ("half", "newer", "older")

    def __init__(self, most: int, items: Iterable[tuple[K, V]] = ()) -> None:
        self.half = most // 2
        entries = iter(dict(items).items())
        self.older: dict[K, V] = dict(islice(entries, self.half))
        self.newer: dict[K, V] = dict(entries)

    def find(self, key: K) -> V | None:
        """What is known of a key. Asking is no use: it keeps nothing."""
        value = self.newer.get(key)
        return self.older.get(key) if value is None else value

    def use(self, key: K, make: Callable[[], V]) -> V:
        """The value of a key, made where there is none."""
        value = self.newer.get(key)
        if value is None:
            if not self.has_room(1):
                self.age()
            value = self.older.pop(key, None)
            if value is None:
                value = make()
            self.newer[key] = value
        return value

    def has_room(self, uses: int) -> bool:
        """Whether so many can be used before anything is forgotten."""
        return len(self.newer) + uses <= self.half

    def age(self) -> None:
        """Forget the older generation; the newer one is the older from now on."""
        self.newer, self.older = {}, self.newer

    def __len__(self) -> int:
        return len(self.newer) + len(self.older)

    def items(self) -> Iterator[tuple[K, V]]:
        """All entries, the older generation first."""
        yield from self.older.items()
        yield from self.newer.items()
