"""The scheduler: pure, deterministic, with the clock passed in.

Inputs (`submit`, `cancel`, `settle`, `depart`, `requeue`, `engine_report`, `reconfigure`) change state; `poll(now)`
returns the decisions that follow from them; `wake_at()` says when to poll without a new input. Nothing here reads a
clock, draws a random number or does I/O, so what a simulation shows is what a gateway does.
"""
