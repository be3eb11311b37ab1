"""A deterministic world in virtual time on the production scheduler.

The scheduler, its policies and its limits are the ones that the gateway runs; engines (`engine`), clients (`clients`) and
load (`workload`, `traces`) are models. Nothing here reads a clock, and all randomness comes from seeds that are passed in,
so a run is a function of its `Setup`.
"""
