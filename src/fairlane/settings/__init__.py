"""Typed settings from one YAML file: validated whole, refused with every fault at once, inert.

`load` and `parse` return frozen `Settings` or raise `SettingsError`, whose problems each name file, line and key and, where one
is near, the key that was meant. Nothing is converted, ignored or completed by guess: a limit that was misspelt must
stop the start, because a gateway that starts without it looks healthy until the day it is needed.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from fairlane.errors import SettingsError
from fairlane.settings.checks import check
from fairlane.settings.document import Document, read
from fairlane.settings.faults import explain
from fairlane.settings.fields import RateLimit, split_address
from fairlane.settings.model import (
    AnonymousSettings,
    BacklogSettings,
    ClassSettings,
    PredictorSettings,
    SchedulingSettings,
    ServerSettings,
    Settings,
    TenantSettings,
)
from fairlane.settings.pools import EngineSettings, PoolSettings
from fairlane.settings.specs import anonymous_tenant, class_specs, engine_spec, pool_specs, tenant, tenants

__all__ = [
    "AnonymousSettings",
    "BacklogSettings",
    "ClassSettings",
    "EngineSettings",
    "PoolSettings",
    "PredictorSettings",
    "RateLimit",
    "SchedulingSettings",
    "ServerSettings",
    "Settings",
    "TenantSettings",
    "anonymous_tenant",
    "class_specs",
    "engine_spec",
    "load",
    "parse",
    "pool_specs",
    "split_address",
    "tenant",
    "tenants",
]


def load(path: Path | None) -> Settings:
    """The settings in the file, or without a file those that need none: the embedded engine, on loopback, for anyone.

    Raises:
        SettingsError: with one line for each fault.
    """
    if path is None:
        return _without_file()
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise SettingsError([f"{path}: cannot be read: {error.strerror or error}"]) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise SettingsError([f"{path}:{line}: is not UTF-8 text"]) from None
    return parse(text, str(path))


def parse(text: str, source: str, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings in the text; `source` names it in faults, `environ` replaces the process's environment.

    Raises:
        SettingsError: with one line for each fault.
    """
    document = read(text, source, os.environ if environ is None else environ)
    if document.tree is None:
        return _without_file()
    settings = _validated(document)
    check(document)
    if settings is None or document.problems:
        raise SettingsError(document.problems)
    return settings


def _validated(document: Document) -> Settings | None:
    """The typed settings, or None when the shape has faults, which the document then holds."""
    try:
        return Settings.model_validate(document.tree)
    except ValidationError as error:
        explain(document, error)
        return None


def _without_file() -> Settings:
    return Settings.model_validate({"anonymous": {"class": "free", "best_class": "realtime"}})
