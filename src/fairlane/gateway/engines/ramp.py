"""How an engine that was away gets its places back.

One that was restarted has empty caches, and everything that waits would be sent to it in one moment. So it is offered a quarter
of its slots at once and twice as many each `STEP_S`, two seconds for all of them. Time is what counts and not answers: a long
answer tells nothing for minutes. At its first start an engine gets all at once, for then nothing has waited for it.
"""

import asyncio
from collections.abc import Callable

FIRST_PART = 4  # of the slots one in so many, rounded up, is there at once
PLACES_MIN = 2  # so that nothing changes for engines with one or two slots
STEP_S = 1.0


class Ramp:
    """One engine's way back. `changed` is called each time when there is more."""

    def __init__(self, changed: Callable[[], None], step_s: float = STEP_S) -> None:
        self._changed = changed
        self._step_s = step_s
        self._places: int | None = None  # None: all
        self._slots = 0
        self._open = self._returns = False
        self._timer: asyncio.TimerHandle | None = None

    def offered(self, slots: int, *, is_open: bool) -> int:
        """How many of its slots an engine is offered that gets work or does not; called whenever one of the two may have changed."""
        if is_open and not self._open and self._returns:
            self._set(max(PLACES_MIN, -(-slots // FIRST_PART)), slots)
        elif not is_open:
            self._set(slots, slots)
        self._open = is_open
        self._returns = self._returns or is_open
        return slots if self._places is None else min(slots, self._places)

    def _set(self, places: int, slots: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._slots = slots
        is_part = places < slots
        self._places = places if is_part else None
        self._timer = asyncio.get_running_loop().call_later(self._step_s, self._more) if is_part else None

    def _more(self) -> None:
        self._set(2 * (self._places or self._slots), self._slots)
        self._changed()
