"""Slots of an engine whose requests were given up here, and on which it may work on all the same.

They are not given out before the engine's own count of requests says that they are free: what is sent before that waits inside the
engine, where it cannot be overtaken. An engine that does not tell its load has none, for nobody could ever say so of it.
"""

from collections.abc import Callable

from fairlane.engines.adapter import Gauges


class Lingering:
    """One engine's; none where it stops at once, where `works_on` is false.

    `changed` is called where `slots` is another than before, `ask` for a page to come soon.
    """

    def __init__(self, changed: Callable[[], None], ask: Callable[[], None], *, works_on: bool) -> None:
        self.slots = 0
        self._changed = changed
        self._ask = ask
        self.works_on = works_on
        self._told = False  # by the last page

    def add(self, sequences: int) -> None:
        """The connection of a request with so many sequences was closed before its answer was whole."""
        if sequences and self.works_on and self._told:
            self.slots += sequences
            self._changed()
            self._ask()

    def review(self, gauges: Gauges | None, ours: int) -> None:
        """Takes a page: free is what the engine does not use beyond `ours`, the fewest that the gateway had there while it was asked."""
        self._told = gauges is not None and gauges.running is not None
        if self.slots:
            beyond = 0 if gauges is None or gauges.running is None else gauges.running + (gauges.waiting or 0) - ours
            before, self.slots = self.slots, max(0, min(self.slots, beyond))
            if self.slots != before:
                self._changed()
