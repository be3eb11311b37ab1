"""`fairlane check FILE`: says whether the gateway would start with a file, and what follows from it."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairlane.errors import SettingsError
from fairlane.settings import Settings, load
from fairlane.settings.model import CallerSettings

_CLASS_COLUMNS = ("class", "min_share", "max_wait_s", "ttft_slo_s", "shed", "max_queued", "max_queued_cost", "max_running")
_CALLER_LIMITS = ("weight", "tokens_per_minute", "requests_per_minute", "max_running", "max_queued")
_TENANT_COLUMNS = ("tenant", "class", "best_class", "weight", "tokens/min", "requests/min", "max_running", "max_queued")
_TENANTS_SHOWN = 50  # of thousands a table is no help; `--json` has them all


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:  # the only name argparse has for it
    """Adds the command."""
    parser = subparsers.add_parser("check", help="check a configuration file", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="the YAML file")
    parser.add_argument("--json", action="store_true", help="print one JSON object for other programs")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints what the file means and returns 0, or prints every fault and returns 2."""
    try:
        settings = load(args.file)
    except SettingsError as error:
        print(json.dumps({"ok": False, "problems": error.problems}, ensure_ascii=False) if args.json else error)
        return 2
    meaning = summary(settings)
    print(
        json.dumps({"ok": True, "problems": [], **meaning}, ensure_ascii=False) if args.json else f"OK  {args.file}\n\n{_tables(meaning)}"
    )
    return 0


def summary(settings: Settings) -> dict[str, Any]:
    """What is configured, without a secret."""
    anonymous = settings.anonymous
    return {
        "listen": settings.server.listen,
        "admin_listen": settings.server.admin_listen,
        "engines": [
            {
                "pool": pool.name,
                "models": list(pool.aliases),
                "engine": engine.name,
                "kind": engine.kind,
                "slots": pool.slots if engine.slots is None else engine.slots,
                "kv_tokens": engine.kv_tokens,
                "context": engine.context,
            }
            for pool in settings.pools
            for engine in pool.engines
        ],
        "classes": [one.model_dump(include=set(_CLASS_COLUMNS)) | {"class": one.name} for one in settings.classes],
        "tenants": [{"tenant": one.name} | _caller(one) for one in settings.tenants],
        "anonymous": anonymous and _caller(anonymous),
    }


def _caller(one: CallerSettings) -> dict[str, Any]:
    return {"class": one.class_name, "best_class": one.best_class} | one.model_dump(include=set(_CALLER_LIMITS))


def _tables(meaning: dict[str, Any]) -> str:
    callers = f"{len(meaning['tenants'])} with keys; " + (
        "without a key class {class}, at best {best_class}".format(**meaning["anonymous"]) if meaning["anonymous"] else "a key is required"
    )
    return "\n".join(
        [
            _table(("pool", "models", "engine", "kind", "slots", "kv_tokens", "context"), meaning["engines"]),
            _table(_CLASS_COLUMNS, [one | {"max_running": _running(one["max_running"])} for one in meaning["classes"]]),
            *_tenant_table(meaning),
            f"callers: {callers}",
            f"listens on {meaning['listen']}, admin pages on {meaning['admin_listen']}",
        ]
    )


def _tenant_table(meaning: dict[str, Any]) -> list[str]:
    """The callers and their limits; one without a key stands last."""
    tenants, anonymous = meaning["tenants"], meaning["anonymous"]
    rows = tenants[:_TENANTS_SHOWN] + ([{"tenant": "(without a key)"} | anonymous] if anonymous else [])
    rates = {"tokens/min": "tokens_per_minute", "requests/min": "requests_per_minute"}
    table = _table(_TENANT_COLUMNS, [row | {column: _rate(row[key]) for column, key in rates.items()} for row in rows])
    more = len(tenants) - _TENANTS_SHOWN
    return [table + f"and {more} more tenants; --json shows all\n"] if more > 0 else [table]


def _rate(limit: dict[str, float] | None) -> str | None:
    return "{rate:.15g} (burst {burst:.15g})".format(**limit) if limit else None


def _running(limit: float | None) -> float | str | None:
    return f"{limit:.15g} of slots" if isinstance(limit, float) else limit


def _table(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    cells = [list(columns), *([_cell(row[column]) for column in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "".join("  ".join(map(str.ljust, line, widths)).rstrip() + "\n" for line in cells)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(value)
    return f"{value:.15g}" if isinstance(value, float) else str(value)
