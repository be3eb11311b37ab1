"""The most that requests which decode in step will ever hold together, as `nested` defines it."""

from collections.abc import Iterable

from fairlane.core.request import Request


def stays_within(cap: int, falling: Iterable[Request], held: int, coming: int) -> bool:
    """Whether these, the one with most tokens to come first, and another that holds so much will never hold more together.

    What starts only after t tokens holds `held` less t now and has `coming` and t to come: from its start on that is the same.
    """
    total, count, pending = 0, 0, True
    for other in falling:
        if pending and other.coming_tokens <= coming:  # here is its own place
            pending = False
            count += 1
            total += held
            if total + count * coming > cap:
                return False
        count += 1
        total += other.held_tokens
        if total + count * other.coming_tokens > cap:
            return False
    return not pending or total + held + (count + 1) * coming <= cap
