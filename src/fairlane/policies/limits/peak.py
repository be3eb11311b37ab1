"""The most that requests which decode in step will ever hold together, as `nested` defines it."""

from collections.abc import Iterable

from fairlane.core.request import Request


def steps(request: Request) -> int:
    """How many steps the running request is predicted to go on: in each of them every sequence of it gains a token."""
    return -(-request.coming_tokens // request.sequences)


def stays_within(cap: int, falling: Iterable[Request], held: int, coming: int, sequences: int) -> bool:
    """Whether these, the one with most steps to come first, and another that holds so much will never hold more together.

    The other has so many sequences, and `coming` steps to come. What starts only after t steps holds t·sequences less now and has
    t more to come: from its start on that is the same.
    """
    total, count, pending = 0, 0, True
    for other in falling:
        left = steps(other)
        if pending and left <= coming:  # here is its own place
            pending = False
            count += sequences
            total += held
            if total + count * coming > cap:
                return False
        count += other.sequences
        total += other.held_tokens
        if total + count * left > cap:
            return False
    return not pending or total + held + (count + sequences) * coming <= cap
