"""The configuration reference as a page: `python -m fairlane.settings.reference` prints `docs/configuration.md`.

Every key, type, default and meaning comes from the settings themselves, so the page cannot say anything else than they do.
"""

from inspect import cleandoc
from typing import Any

from pydantic.fields import FieldInfo

from fairlane.settings.faults import LATER_KEYS
from fairlane.settings.fields import Derived, RateLimit, Section
from fairlane.settings.model import SECTIONS
from fairlane.settings.schema import schema

EXAMPLE = """\
server: {listen: "0.0.0.0:8080", admin_listen: "127.0.0.1:8081"}

pools:
  - name: main
    models: ["llama-3.1-8b", {fast: llama-3.1-8b}]     # clients may also ask for "fast"
    slots: 32
    engines:
      - {name: gpu0, kind: openai, url: "http://10.0.0.5:8000", api_key: "${ENGINE_KEY}", kv_tokens: 200000}
      - {name: gpu1, kind: openai, url: "http://10.0.0.6:8000", api_key: "${ENGINE_KEY}", kv_tokens: 200000}
  - name: small
    models: ["smollm2-135m"]
    engines:
      - {name: local, kind: embedded, slots: 2}

classes:                                               # the order is the priority
  - {name: realtime, min_share: 0.30, ttft_slo_s: 1.5, max_wait_s: 8, max_queued: 200}
  - {name: paid, min_share: 0.15, ttft_slo_s: 4, max_wait_s: 20, max_queued: 500}
  - {name: free, min_share: 0.10, max_wait_s: 60, max_queued: 500, max_running: 0.5}
  - {name: batch, min_share: 0.10, max_wait_s: 86400, max_queued: 100000}

predictor: {state_file: /var/lib/fairlane/state.json}  # what was learned of answers survives a restart

tenants:
  - name: acme
    key_hashes: ["sha256:2e9ee1123b929a5fb564f235519a259d314f0fddb8181d7d61b949bf783c67ea"]
    class: paid
    best_class: realtime
    weight: 2
    max_running: 16
    requests_per_minute: 600                           # the bucket holds 2.5 minutes of it
    tokens_per_minute: {rate: 200000, burst: 400000}

anonymous: {class: free, max_running: 2}               # without this line every caller needs a key
"""

_INTRODUCTION = """\
<!-- Made by `python -m fairlane.settings.reference`; change src/fairlane/settings/, not this page. -->
# Configuration

`fairlane serve --config FILE` reads one YAML file; `fairlane check FILE` says whether it would start, and shows what follows
from the file. `schema/fairlane.schema.json` lets an editor complete and check keys while you type.

```yaml
{example}```

## How the file is read

- **Nothing is guessed.** An unknown key, a wrong type, a name that refers to nothing, a key given twice or a key without a
  value stops the start. All faults are reported at once, each as `FILE:LINE: key: what is wrong (what was probably meant)`.
- **What is left out has the default below.** Without a file, or with an empty one, Fairlane serves the embedded demonstration
  model on loopback and takes callers without a key (`anonymous: {{class: free, best_class: realtime}}`). Any other file needs
  `tenants` or `anonymous`, else nobody could call.
- **Times are seconds, as plain numbers** (`10`, not `10s`), and their keys end in `_s`. Scalars are read by the YAML 1.2
  core rules: truth values are `true` and `false` only.
- **`${{NAME}}` in a text is replaced from the environment**, as the whole text or a part of it; a variable that is not set or
  is empty stops the start. Inside braces or brackets it needs quotes. Faults never repeat what a variable held.
- **Keys are stored as hashes.** `fairlane hash-key` reads a key and prints the line for `key_hashes`;
  `fairlane hash-key --new` makes a key first.
"""

_TITLES = {
    "": "Top of the file",
    "tenants[].requests_per_minute": "`requests_per_minute` and `tokens_per_minute`",
}


def page() -> str:
    """The whole reference."""
    definitions = schema()["$defs"]
    parts = [_INTRODUCTION.format(example=EXAMPLE)]
    shown: set[type[Section]] = set()
    for pattern, section in SECTIONS:
        if section not in shown:
            shown.add(section)
            properties = definitions[section.__name__]["properties"] if pattern else schema()["properties"]
            title = _TITLES.get(pattern, f"`{pattern}`")
            parts.append(f"## {title}\n\n{_theory(section)}\n\n{_table(section, properties)}")
    return "\n".join([*parts, _later()])


def _theory(section: type[Section]) -> str:
    text = cleandoc(section.__doc__ or "")
    return text + " A plain number is the `rate`, with the default `burst`." if section is RateLimit else text


def _table(section: type[Section], properties: dict[str, Any]) -> str:
    fields = [(field.alias or name, field) for name, field in section.model_fields.items()]
    fields.sort(key=lambda one: (one[0] != "name", not one[1].is_required()))
    rows = ["| Key | Type | Default | Meaning |", "|---|---|---|---|"]
    rows += [f"| `{key}` | {_type(properties[key])} | {_default(field)} | {_cell(field.description or '')} |" for key, field in fields]
    return "\n".join(rows) + "\n"


def _default(field: FieldInfo) -> str:
    derived = next((one.text for one in field.metadata if isinstance(one, Derived)), None)
    if derived:
        return _cell(derived)
    if field.is_required():
        return "required"
    value = field.default
    if field.default_factory or value is None:
        return "none" if value is None else "its keys' defaults"
    if isinstance(value, tuple):
        return f"`[{', '.join(map(repr, value))}]`".replace("'", '"')
    return f"`{str(value).lower() if isinstance(value, bool) else f'{value:.15g}' if isinstance(value, float) else value}`"


def _type(node: dict[str, Any]) -> str:
    """The JSON Schema of a field in words."""
    if "anyOf" in node:
        return " or ".join(dict.fromkeys(_type(choice) for choice in node["anyOf"]))
    if "const" in node or "enum" in node:
        return " or ".join(f"`{word}`" for word in node.get("enum", [node.get("const")]))
    if "$ref" in node:
        return "mapping"
    names = {"integer": "whole number", "number": "number", "string": "text", "boolean": "`true` or `false`", "object": "mapping"}
    if node["type"] == "array":
        return "list of " + " or ".join(f"{_type(choice)}s" for choice in node["items"].get("anyOf", [node["items"]]))
    if node.get("minimum") == node.get("maximum", ""):
        return f"`{node['minimum']}`"
    bounds = [
        f"{sign} {node[key]:.15g}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"))
        if key in node and abs(node[key]) < 1e9
    ]
    return " ".join([names[node["type"]], ", ".join(bounds)]).strip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _later() -> str:
    keys = ", ".join(f"`{key}`" for key in sorted(LATER_KEYS))
    return (
        "## Not in this version\n\nA setting that would do nothing is refused. These are planned and are refused as "
        f'"not available in this version": the keys {keys}; `workers` above 1.\n'
    )


if __name__ == "__main__":
    print(page(), end="")
