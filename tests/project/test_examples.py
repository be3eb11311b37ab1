"""The configurations that people copy are valid, and the README's defaults are the real ones."""

import re
from pathlib import Path

import pytest

from bench.run import FAIRLANE_YAML
from fairlane.settings import ClassSettings, load, parse

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = [
    pytest.param(text, id=f"{page.name}:{n}")
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))
    for n, text in enumerate(re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))
]


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_are_valid(text: str) -> None:
    """Every YAML block of the README and the pages can be served as it stands."""
    environment = dict.fromkeys(re.findall(r"\$\{(\w+)\}", text), "secret")
    assert parse(text, "example", environment).pools


def test_the_readme_has_an_example() -> None:
    """The README shows at least one configuration."""
    assert "```yaml\n" in README


def test_the_benchmark_configures_fairlane_validly() -> None:
    """`make bench` gives the gateway one pool in front of the mock engine and one class for everybody."""
    settings = parse(FAIRLANE_YAML.format(port=8080, admin=8081, engine=8000), "bench")
    assert [e.kind for e in settings.pools[0].engines] == ["openai"]
    assert settings.anonymous is not None


@pytest.mark.parametrize("default", load(None).classes, ids=lambda c: c.name)
def test_the_readme_tells_the_default_classes(default: ClassSettings) -> None:
    """The README's table has the class with its share, longest wait and bound."""
    (row,) = (line for line in README.splitlines() if line.startswith(f"| `{default.name}`"))
    assert f"| {default.min_share:.0%} |".replace("%", " %") in row
    assert f"| {default.max_wait_s:g} s |" in row
    assert f"| {default.max_queued:,} requests |" in row


def test_the_readme_tells_the_default_addresses_and_model() -> None:
    """What the README's first command line talks to is what an unconfigured gateway serves."""
    settings = load(None)
    assert f"http://{settings.server.listen}/v1/chat/completions" in README
    assert f"http://{settings.server.admin_listen}/metrics" in README
    assert all(f'"model": "{alias}"' in README for pool in settings.pools for alias in pool.aliases)
