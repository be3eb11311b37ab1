"""A good configuration, and what comes of spoiling it in one place."""

import re

import pytest

from fairlane.errors import SettingsError
from fairlane.settings import parse

Case = tuple[str | None, str, list[str]]
"""What is replaced in `GOOD` (None: all of it), by what, and the faults that follow; "…" stands for anything."""

A = "sha256:" + "a" * 64
B = "sha256:" + "b" * 64

KINDS = "'embedded', 'llamacpp', 'vllm', 'sglang', 'tgi', 'openai' or 'simulated'"

GOOD = f"""\
server:
  listen: 127.0.0.1:8080
  drain_s: 60
pools:
  - name: main
    models: [m, {{fast: m-engine}}]
    slots: 4
    engines:
      - {{name: e0, kind: openai, url: "http://127.0.0.1:9", api_key: "${{ENGINE_KEY}}"}}
      - {{name: e1, kind: embedded}}
classes:
  - {{name: paid, min_share: 0.6, max_wait_s: 20}}
  - {{name: free, min_share: 0.4, max_queued: 50}}
scheduling: {{policy: gmp}}
tenants:
  - name: acme
    class: paid
    key_hashes: ["{A}"]
anonymous: {{class: free}}
"""
SECRET = "sk-not-to-be-seen"
ENVIRON = {"ENGINE_KEY": SECRET, "EMPTY": "", "PIN": "4711s"}


def problems(text: str) -> list[str]:
    """The faults of a text that must have some, without the file's name."""
    with pytest.raises(SettingsError) as caught:
        parse(text, "f.yaml", ENVIRON)
    found = caught.value.problems
    assert all(one.startswith("f.yaml:") for one in found)
    assert SECRET not in str(caught.value)
    assert "4711" not in str(caught.value)
    return [one.removeprefix("f.yaml:") for one in found]


def check(case: Case) -> None:
    """Spoils the good file as the case says and compares the faults."""
    old, new, expected = case
    assert old is None or GOOD.count(old) == 1
    found = problems(new if old is None else GOOD.replace(old, new))
    patterns = [".*".join(map(re.escape, fault.split("…"))) for fault in expected]
    assert [bool(re.fullmatch(*pair)) for pair in zip(patterns, found, strict=False)] == [True] * max(len(found), len(expected)), found
