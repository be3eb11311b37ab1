"""The published schema and the configuration reference are what the settings say."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlane.settings.fields import Section
from fairlane.settings.model import SECTIONS, keys_of
from fairlane.settings.schema import schema

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("module", "page"), [("schema", "schema/fairlane.schema.json"), ("reference", "docs/configuration.md")])
def test_the_page_in_the_repository_is_the_generated_one(module: str, page: str) -> None:
    """`python -m fairlane.settings.MODULE > PAGE` has nothing to change."""
    command = [sys.executable, "-m", f"fairlane.settings.{module}"]
    made = subprocess.run(command, capture_output=True, timeout=30, check=True).stdout
    assert made.decode() == (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize(("pattern", "section"), SECTIONS)
def test_every_key_is_described(pattern: str, section: type[Section]) -> None:
    """Each key has one paragraph that ends like a sentence, in the settings, the schema and the reference."""
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for key, field in zip(keys_of(section), section.model_fields.values(), strict=True):
        assert field.description, f"{pattern}.{key}"
        assert field.description.endswith("."), f"{pattern}.{key}"
        assert f"\n| `{key}` | " in page
        assert field.description in page


def nodes(node: object) -> Iterator[dict[str, object]]:
    """Every object of a JSON document."""
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from nodes(child)


def test_the_schema_refuses_unknown_keys_and_null() -> None:
    """An editor marks a misspelt key and a key without a value, as the gateway would."""
    found = list(nodes(schema()))
    sections = [node for node in found if "properties" in node and node.get("type") == "object"]
    assert len(sections) == len({section for _, section in SECTIONS})
    assert all(node.get("additionalProperties") is False for node in sections)
    assert not any(node.get("type") == "null" for node in found)
    assert json.loads(json.dumps(schema())) == schema()


def test_the_schema_has_every_key_of_the_file() -> None:
    """The schema's keys are the words of the file, `class` and not its name in the program."""
    definitions = schema()["$defs"]
    for pattern, section in SECTIONS:
        node = definitions[section.__name__] if pattern else schema()
        assert tuple(node["properties"]) == keys_of(section)
