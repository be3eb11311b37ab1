"""What the plugin is told by its environment, because vLLM's command line has no place for it.

`FAIRLANE_CLASSES` is the path of a Fairlane configuration, best the gateway's own, or a list of classes as JSON. Unset, the classes are
those of a gateway without a configuration. `FAIRLANE_CLASS_FROM=priority` takes vLLM's `priority` as the rank of a class where the
gateway has not said one.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fairlane import plugins
from fairlane.core.protocols import Policy
from fairlane.core.values import CostWeights, PriorityClass, Tenant
from fairlane.errors import SettingsError
from fairlane.settings import Settings, class_specs, load, parse

CLASSES = "FAIRLANE_CLASSES"
CLASS_FROM = "FAIRLANE_CLASS_FROM"


class Configured(NamedTuple):
    """Classes by rank, the policy made for them, the tenants that have a weight, and what a token costs."""

    classes: tuple[PriorityClass, ...]
    policy: Policy
    tenants: Mapping[str, Tenant]
    weights: CostWeights
    by_priority: bool


def read(environ: Mapping[str, str]) -> Configured:
    """What the environment says.

    Raises:
        SettingsError: with one line for each fault.
    """
    source = environ.get(CLASS_FROM) or "xargs"
    if source not in {"xargs", "priority"}:
        raise SettingsError([f"{CLASS_FROM}: must be 'xargs' or 'priority', not {source!r}"])
    settings = _settings(environ.get(CLASSES, "").strip(), environ)
    classes = tuple(replace(one, max_running=None) for one in class_specs(settings, 0))  # limits are the gateway's
    return Configured(
        classes=classes,
        policy=plugins.policy(settings.scheduling.policy, classes),
        tenants={one.name: Tenant(one.name, one.weight) for one in settings.tenants},
        weights=CostWeights(settings.scheduling.input_weight, settings.scheduling.output_weight),
        by_priority=source == "priority",
    )


def _settings(classes: str, environ: Mapping[str, str]) -> Settings:
    if not classes.startswith("["):
        return load(Path(classes) if classes else None)
    try:
        listed = json.loads(classes)
        anyone = {"class": listed[-1]["name"]}
    except (ValueError, LookupError, TypeError) as error:
        raise SettingsError([f"{CLASSES}: is no list of classes as JSON: {error!r}"]) from None
    return parse(json.dumps({"anonymous": anyone, "classes": listed}), CLASSES, environ)
