"""The scheduler: pure, deterministic, with the clock passed in.

Inputs (`submit`, `cancel`, `settle`, `depart`, ...) change state; `poll(now)` returns the decisions that follow; `wake_at()` says when
to poll without a new input. Nothing here does I/O, so what a simulation shows is what a gateway does.
"""
