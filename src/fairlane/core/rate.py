"""How fast work is served, measured over the time in which there was a backlog.

An average over wall time would measure demand: after a quiet hour it would refuse the first burst of the morning. So a
clock runs only while something waits, and a finished request counts with the part of its run that this clock saw.
Older work fades with a half-life of `HALF_LIFE` finished requests; idleness changes nothing.
"""

MIN_COMPLETIONS = 20  # below, no rate is known
HALF_LIFE = 100.0  # finished requests
_FADE = 0.5 ** (1.0 / HALF_LIFE)


class ServiceRate:
    """Cost per second while backlogged, of a pool or of one class of it."""

    def __init__(self, now: float) -> None:
        self.backlogged = False  # the busy clock runs
        self._since = now
        self._busy_s = 0.0  # the busy clock at `_since`
        self._counted_s = 0.0  # the busy clock when last something finished
        self._cost = self._seconds = 0.0
        self.completions = 0

    def set_backlogged(self, backlogged: bool, now: float) -> None:  # noqa: FBT001 - it is the state itself
        """Starts or stops the busy clock."""
        if backlogged != self.backlogged:
            self._busy_s = self.busy_s(now)
            self._since = now
            self.backlogged = backlogged

    def busy_s(self, now: float) -> float:
        """The busy clock: seconds with a backlog until now."""
        return self._busy_s + (now - self._since if self.backlogged else 0.0)

    def served(self, cost: int, busy_at_start: float, run_s: float, now: float) -> None:
        """Counts a finished request that ran `run_s` seconds and began at the reading `busy_at_start`."""
        busy = self.busy_s(now)
        part = min(1.0, (busy - busy_at_start) / run_s) if run_s > 0 else 0.0
        if part <= 0.0:
            return
        self._cost = self._cost * _FADE + cost * part
        self._seconds = self._seconds * _FADE + (busy - self._counted_s)
        self._counted_s = busy
        self.completions += 1

    def failed(self, now: float) -> None:
        """What an engine failed at says nothing of how fast it serves: the time since the last end is not counted."""
        self._counted_s = self.busy_s(now)

    def per_s(self, now: float) -> float | None:
        """Cost per busy second, or None before `MIN_COMPLETIONS`. Falls while nothing finishes."""
        seconds = self._seconds + self.busy_s(now) - self._counted_s
        if self.completions < MIN_COMPLETIONS or seconds <= 0.0:
            return None
        return self._cost / seconds


class Shadow:
    """Cost that was refused and is expected back; it is worked off at the rate at which its class is served."""

    def __init__(self, now: float) -> None:
        self._cost = 0.0
        self._at = now

    def add(self, cost: float, per_s: float, now: float) -> float:
        """Counts refused cost, and returns what was expected back before it."""
        before = max(0.0, self._cost - per_s * (now - self._at))
        self._cost = before + cost
        self._at = now
        return before
