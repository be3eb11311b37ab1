"""A request that an oracle run puts back into its place after the scheduler has shed it."""

from __future__ import annotations

from dataclasses import fields

from fairlane.core.values import Request, State


class Arrived(float):
    """A moment that no time has passed since: an order by it is as ever, a wait counted from it is never too long."""

    def __rsub__(self, other: float) -> float:
        return float("-inf")


class Kept(Request):
    """Stands where the shed request stood, by its arrival and key, and is never late."""

    __slots__ = ()

    @classmethod
    def of(cls, shed: Request, number: int) -> Kept:
        """A fresh request with everything that was given to the shed one."""
        given = {f.name: getattr(shed, f.name) for f in fields(Request)}
        return cls(**given | {"id": number, "state": State.NEW, "arrived_at": Arrived(shed.arrived_at), "flow": None, "engine": None})

    @property
    def deadline(self) -> float:
        """There is none."""
        return float("inf")

    @deadline.setter
    def deadline(self, _: float) -> None:
        pass
