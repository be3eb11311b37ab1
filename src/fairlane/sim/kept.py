"""A request that an oracle run puts back into its place after the scheduler has shed it."""

from __future__ import annotations

from dataclasses import replace

from fairlane.core.values import Request, State


class Kept:
    """Stands where the shed request stood, by its arrival and key. It is late only if the classes it is submitted under say so."""

    @staticmethod
    def of(shed: Request, number: int) -> Request:
        """A fresh request with everything that was given to the shed one."""
        return replace(shed, id=number, state=State.NEW)
