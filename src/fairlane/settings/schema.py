"""The JSON Schema of the configuration file: `python -m fairlane.settings.schema` prints it.

It serves editors. What it cannot say (references between sections, sums, exclusions) `fairlane check` says.
"""

import json
from typing import Any

from fairlane.settings.model import Settings

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """The schema, in which a key is left out rather than null, as the file wants it."""
    made: dict[str, Any] = _without_null(Settings.model_json_schema(by_alias=True))
    return {"$schema": DIALECT, **made, "title": "Fairlane configuration"}


def _without_null(node: Any) -> Any:  # noqa: ANN401 (JSON)
    if isinstance(node, list):
        return [_without_null(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {key: _without_null(value) for key, value in node.items() if not _noise(key, value)}
    if isinstance(kept.get("pattern"), str):
        kept["pattern"] += r"|\$\{"  # an environment reference may stand for any text
    choices = [choice for choice in kept.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1:
        del kept["anyOf"]
        return {**choices[0], **kept}
    return {**kept, "anyOf": choices} if choices else kept


def _noise(key: str, value: object) -> bool:
    """A null default is no default to write down, and pydantic's titles repeat the keys."""
    return (key == "default" and value is None) or (key == "title" and isinstance(value, str))


def text() -> str:
    """The schema as the file of the repository holds it."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(text(), end="")
