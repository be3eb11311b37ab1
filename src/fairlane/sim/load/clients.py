"""Clients: how long they wait for a first token, when they hang up, and what they do after a refusal or a wait in vain."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

HINT_MAX_S = 120.0  # clients of the OpenAI SDK give up at a longer Retry-After


class Retry(StrEnum):
    """How a client comes back."""

    NONE = "none"
    FIXED = "fixed"  # after the same pause each time
    JITTER = "jitter"  # full jitter: anywhere up to a limit that doubles each time
    OBEY = "obey"  # when Retry-After says, to the second; full jitter where nothing is said


@dataclass(frozen=True, slots=True)
class Clients:
    """The behaviour of all clients of a run."""

    patience_s: tuple[float | None, ...] = (8.0, 20.0, 60.0, None)  # until the first token, by rank; None waits for ever
    retry: Retry = Retry.NONE
    tries_max: int = 4
    pause_s: float = 1.0  # of fixed; the first limit of full jitter
    pause_s_max: float = 16.0
    disconnect_ratio: float = 0.0  # of requests whose client hangs up in the middle of the answer

    def retry_in_s(self, tries: int, retry_after_s: float | None, rng: random.Random) -> float | None:
        """How long the client pauses after that many tries, or None if it gives up."""
        if self.retry is Retry.NONE or tries >= self.tries_max:
            return None
        if self.retry is Retry.FIXED:
            return self.pause_s
        if self.retry is Retry.OBEY and retry_after_s is not None:
            return retry_after_s if retry_after_s <= HINT_MAX_S else None
        return rng.uniform(0.0, min(self.pause_s_max, self.pause_s * 2.0 ** (tries - 1)))

    def hangs_up_after(self, output_tokens: int, rng: random.Random) -> int:
        """Tokens after which the client leaves; 0 if it stays. A client that leaves does so anywhere in the answer."""
        leaves = self.disconnect_ratio > 0 and rng.random() < self.disconnect_ratio
        return rng.randint(1, output_tokens) if leaves else 0
