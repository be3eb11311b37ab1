"""Loads by name: the reference workload, the troubles that a gateway has to get through, tables that ship, and traces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fairlane.sim.engine.model import EngineModel
from fairlane.sim.load import traces
from fairlane.sim.load.clients import Retry
from fairlane.sim.load.lengths import TABLES
from fairlane.sim.load.traces import TraceError
from fairlane.sim.load.workload import NIGHTLY, NOISY, PLACES, REFERENCE, SHIFT, SHIFT_S, Mix, Phase, Recorded, table_mix
from fairlane.sim.setup import Setup

_BURST = Phase(180.0, 210.0, 5.0)
_QUIET = Phase(180.0, 3780.0, 0.0)
_AFTER_QUIET = Phase(3780.0, 3810.0, 5.0)
_BROWNOUT = Phase(180.0, 240.0, 10.0)
_LARGE_MODEL = EngineModel(step_s=0.03)
_SLOWER = Phase(120.0, 1e9, 2.0)
_JOINED_S = (120.0, 300.0)
_SETTLE_S = 60.0  # after a shift, before anything is scored
FOLDERS = (Path(), Path("traces"))  # where a trace is looked for by name


def scenario(name: str, setup: Setup) -> Setup:
    """The setup under the named circumstances.

    `noisy`: in each class one tenant sends ten times as much as each of its peers. `burst`: five times the load for half a
    minute. `quiet`: an hour without requests, then such a burst. `storm`: engines ten times as slow for a minute, and clients
    who come back. `shift`: prompts that were short are long from one moment on; what is scored begins a minute later. `slower`:
    an engine of eight places falls to half its speed and stays there. `nightly`: sixteen places of a slow engine, which batch fills, and
    now and then an urgent request. `join`: one engine more comes for three minutes and goes again.
    """
    return {
        "reference": setup,
        "noisy": replace(setup, source=NOISY),
        "burst": replace(setup, source=REFERENCE.phased(name, _BURST), overload=_BURST),
        "quiet": replace(setup, source=REFERENCE.phased(name, _QUIET, _AFTER_QUIET), overload=_AFTER_QUIET, duration_s=3840.0),
        "shift": replace(setup, source=SHIFT, warmup_s=SHIFT_S + _SETTLE_S, duration_s=300.0),
        "slower": replace(setup, source=PLACES, slots=8, brownouts=(_SLOWER,), warmup_s=_SLOWER.begin_s + 10.0),
        "nightly": replace(setup, source=NIGHTLY, slots=16, model=_LARGE_MODEL),
        "join": replace(setup, engines=setup.engines + 1, last_there=_JOINED_S),
        "storm": replace(setup, brownouts=(_BROWNOUT,), overload=_BROWNOUT, clients=replace(setup.clients, retry=Retry.JITTER)),
    }[name]


SCENARIOS = ("reference", "noisy", "burst", "quiet", "shift", "slower", "nightly", "join", "storm")


def traced(name: str, setup: Setup) -> Setup:
    """The setup on a trace: a file, a file by its bare name, or else requests drawn from the table of that name that ships.

    A recorded trace is scored from its first minute to its end.
    """
    path = _find(name)
    if path is None:
        if name not in TABLES:
            raise TraceError(f"{name}: no such file, and no table of that name; tables: {', '.join(TABLES)}")
        return replace(setup, source=table_mix(name))
    source = Recorded(str(path), traces.read(path))
    length = source.rows[-1].t / setup.load
    warmup = min(setup.warmup_s, length / 4)
    return replace(setup, source=source, warmup_s=warmup, duration_s=max(1.0, length - warmup))


def surged(setup: Setup, factors: Mapping[str, float]) -> Setup:
    """The setup with the rates of some classes multiplied; a recorded trace has none to multiply."""
    if not factors:
        return setup
    if not isinstance(setup.source, Mix):
        raise TraceError(f"{setup.source.name}: a recorded trace cannot surge by class; use the tables or the reference workload")
    return replace(setup, source=setup.source.surged(factors))


def _find(name: str) -> Path | None:
    if Path(name).is_file():
        return Path(name)
    candidates = (folder / f"{name}{suffix}" for folder in FOLDERS for suffix in (".csv.gz", ".csv"))
    return next((path for path in candidates if path.is_file()), None)
