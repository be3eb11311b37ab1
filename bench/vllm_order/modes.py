"""How Fairlane stands in front of vLLM: it holds all back itself, or the engine's own line is put in order, by a stamp or by the plugin."""

import json
from dataclasses import dataclass
from hashlib import sha256

from bench.vllm_order.calls import MODEL

PLACES = 8  # requests that vLLM runs at once
SHARES = {"realtime": 0.3, "paid": 0.15, "free": 0.1, "batch": 0.1}
CLASSES: list[dict[str, object]] = [
    {"name": "realtime", "min_share": 0.3, "max_wait_s": 8, "max_queued": 200},
    {"name": "paid", "min_share": 0.15, "max_wait_s": 20, "max_queued": 500},
    {"name": "free", "min_share": 0.1, "max_wait_s": 60, "max_queued": 500},
    # All of its requests are equally long; 0 keeps the plugin to the order of arrival where requests come without the gateway's word.
    {"name": "batch", "min_share": 0.1, "max_wait_s": 86400, "max_queued": 100000, "short_first_s": 0},
]


@dataclass(frozen=True)
class Mode:
    """Options of vLLM, what the gateway is told of it, and whether more is sent to it than it runs."""

    options: tuple[str, ...]
    said: tuple[tuple[str, object], ...] = ()
    ahead: bool = False


WATCHED = "bench.vllm_order.watched"
MODES = {
    "gateway": Mode(("--scheduler-cls", f"{WATCHED}.Stock")),
    "stamp": Mode(("--scheduler-cls", f"{WATCHED}.Stock", "--scheduling-policy", "priority"), ahead=True),
    "plugin": Mode(("--scheduler-cls", f"{WATCHED}.Plugin"), (("scheduler_plugin", True),), ahead=True),
}


def settings(mode: Mode, engine: int, slots: int | None, batch: dict[str, object] | None = None) -> dict[str, object]:
    """The gateway's, without its addresses: the default classes, and `batch` for that class besides.

    Each class has a tenant, so that the lengths of its answers are foretold from its own.
    """
    told: dict[str, object] = {"name": "vllm", "kind": "vllm", "url": f"http://127.0.0.1:{engine}", **dict(mode.said)}
    told |= {} if slots is None else {"slots": slots}
    classes = [{**one, **(batch or {})} if one["name"] == "batch" else one for one in CLASSES]
    return {
        "pools": [{"name": "main", "models": [MODEL], "engines": [told]}],
        "classes": classes,
        "tenants": [{"name": name, "class": name, "key_hashes": [f"sha256:{sha256(name.encode()).hexdigest()}"]} for name in SHARES],
    }


def plugin_classes() -> str:
    """The classes as the plugin reads them from its environment."""
    return json.dumps(CLASSES)
