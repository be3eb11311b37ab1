"""The KV cache as an engine deals it out: in blocks of some tokens, whole ones only.

A decoding sequence takes a new block whenever the last one is full, once in `size` steps. All decode in step, so it is enough to
know how many sequences are at which place in their last block: rounds turn that ring by one.

With `keep`, freed blocks hold on to what is in them. The full ones of a sequence wait in a line, its last block first, and are
taken from the front when no blank ones are left; a sequence that comes back finds what remains, which is its beginning.
"""

from __future__ import annotations

from collections import deque

from fairlane.sim.engine.jobs import Job


class Blocks:
    """The free blocks, and what the decoding sequences are going to take of them from round to round."""

    __slots__ = ("_blank", "_decoding", "_keep", "_kept", "_line", "_ring", "free", "size", "total")

    def __init__(self, tokens: int, size: int, *, keep: bool = False) -> None:
        self.size = size
        self.total = tokens // size
        self.free = self.total
        self._keep = keep
        self._blank = self.total
        self._line: deque[list[int]] = deque()  # how many are left of what one sequence gave back
        self._kept: dict[Job, list[int]] = {}
        self._decoding = 0
        self._ring = [0] * size

    def of(self, tokens: int) -> int:
        """Blocks that hold so many tokens of one sequence."""
        return -(-tokens // self.size)

    def take(self, blocks: int) -> None:
        """Takes free blocks."""
        self.free -= blocks
        self._blank -= blocks
        while self._blank < 0:
            some = min(self._line[0][0], -self._blank)
            self._blank += some
            self._line[0][0] -= some
            if not self._line[0][0]:
                self._line.popleft()

    def give_back(self, tokens: int, ahead: int = 0, job: Job | None = None) -> None:
        """Frees what a sequence has for the tokens it holds and those `ahead` of it; the job is named if it may come back."""
        full = tokens // self.size if self._keep else 0
        blank = self.of(tokens + ahead) - full
        self.free += full + blank
        self._blank += blank
        if full:
            self._line.append([full])
            if job is not None:
                self._kept[job] = self._line[-1]

    def found(self, job: Job) -> int:
        """Free blocks in which the sequence would find its beginning."""
        return self._kept[job][0] if job in self._kept else 0

    def reclaim(self, job: Job) -> None:
        """Takes those."""
        if job in self._kept:
            part = self._kept.pop(job)
            self.free -= part[0]
            part[0] = 0

    def enter(self, job: Job) -> None:
        """The sequence decodes from now on until its `end_round`."""
        self._decoding += 1
        self._ring[self._place(job)] += 1

    def leave(self, job: Job) -> None:
        """The sequence decodes no longer; its `end_round` is still the one it entered with."""
        self._decoding -= 1
        self._ring[self._place(job)] -= 1

    def due(self, now: int) -> int:
        """Blocks that the decoding sequences take in the step of round `now`."""
        return self._ring[-now % self.size]

    def grow(self, now: int, steps: int) -> None:
        """Takes what they need in that many steps from round `now` on."""
        whole, rest = divmod(steps, self.size)
        self.take(whole * self._decoding + sum([self.due(now + step) for step in range(rest)]))

    def last(self, now: int, steps_max: int) -> int:
        """For how many steps from round `now` on the free blocks are enough; no more than `steps_max` are looked at."""
        whole, free = divmod(self.free, self._decoding)
        steps = whole * self.size
        while steps < steps_max and self.due(now + steps) <= free:
            free -= self.due(now + steps)
            steps += 1
        return min(steps, steps_max)

    def _place(self, job: Job) -> int:
        """Tokens held beyond round 0, had it decoded since then: a block is full in the rounds where this and the round make 0."""
        return (job.prompt_tokens + job.output_tokens - 1 - job.end_round) % self.size
