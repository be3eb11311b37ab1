"""Section 10 of the field cases: a wrong configuration stops the start, and says where and what."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.harness import FAIRLANE

GOOD = """\
server:
  listen: "127.0.0.1:0"
  admin_listen: "127.0.0.1:0"
  drain_s: 5
pools:
  - name: main
    models: ["m"]
    engines:
      - {name: e0, kind: openai, url: "http://127.0.0.1:9", slots: 2}
classes:
  - name: paid
    min_share: 0.2
    max_wait_s: 20
    max_queued: 50
scheduling:
  policy: gmp
tenants:
  - name: acme
    class: paid
    key_hashes: ["sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"]
anonymous: {class: paid}
"""
BAD = {  # what is replaced, by what, and what the answer has to hold beside the file: the path or line, and the nearest key
    "misspelt_key": ("max_queued: 50", "max_qeued: 50", ["14", "max_qeued", "max_queued"]),
    "wrong_level": ("  drain_s: 5", "  drain_s: 5\n  policy: gmp", ["5", "policy", "scheduling"]),
    "duration_as_text": ("max_wait_s: 20", 'max_wait_s: "10s"', ["13", "max_wait_s"]),
    "negative_limit": ("max_queued: 50", "max_queued: -1", ["14", "max_queued"]),
    "no_workers": ("  drain_s: 5", "  drain_s: 5\n  workers: 0", ["5", "workers"]),
    "unknown_class": ("    class: paid\n", "    class: payed\n", ["19", "payed", "paid"]),
    "unknown_model": ("    class: paid\n", '    class: paid\n    models: ["n"]\n', ["20", "models"]),
    "tenant_twice": (
        "anonymous:",
        '  - {name: acme, class: paid, key_hashes: ["sha256:' + "b" * 64 + '"]}\nanonymous:',
        ["21", "acme"],
    ),
    "duplicate_key": ("    max_wait_s: 20", "    max_wait_s: 20\n    max_wait_s: 30", ["14", "13", "max_wait_s"]),
    "unset_environment": ("slots: 2", 'slots: 2, api_key: "${FAIRLANE_TEST_UNSET}"', ["9", "api_key", "FAIRLANE_TEST_UNSET"]),
    "exclusive_settings": ("kind: openai", "kind: embedded", ["9", "url"]),
    "bad_yaml": ("drain_s: 5", "drain_s: 5: 6", ["4"]),
}


def fairlane(*arguments: str) -> tuple[int, str]:
    """Run the command and return its exit code and all that it wrote."""
    done = subprocess.run([FAIRLANE, *arguments], capture_output=True, text=True, timeout=10, check=False)
    return done.returncode, done.stdout + done.stderr


def test_fc_51_a_good_file_passes_the_check(tmp_path: Path) -> None:
    """The file that the other tests spoil is itself in order."""
    file = tmp_path / "fairlane.yaml"
    file.write_text(GOOD)
    assert fairlane("check", str(file))[0] == 0


@pytest.mark.parametrize("command", [["check"], ["serve", "--config"]], ids=["check", "serve"])
@pytest.mark.parametrize("name", BAD)
def test_fc_51_config_mistakes_are_refused_with_a_pointer(tmp_path: Path, name: str, command: list[str]) -> None:
    """Check and start both fail and name file, line and key, and the nearest valid key where one was missed."""
    old, new, named = BAD[name]
    assert GOOD.count(old) == 1
    file = tmp_path / "fairlane.yaml"
    file.write_text(GOOD.replace(old, new))
    code, text = fairlane(*command, str(file))
    assert code not in {0, None}
    assert "Traceback" not in text
    line, *words = named
    assert re.search(rf"fairlane\.yaml:{line}\b", text), text
    assert [word for word in words if word not in text] == [], text


def test_fc_51_every_mistake_is_reported_at_once(tmp_path: Path) -> None:
    """A file with several mistakes is not a guessing game of one by one."""
    file = tmp_path / "fairlane.yaml"
    file.write_text(GOOD.replace("max_queued: 50", "max_qeued: 50").replace("drain_s: 5", "drain_s: -5").replace("slots: 2", "slots: no"))
    code, text = fairlane("check", str(file))
    assert code != 0
    assert [word for word in ("max_qeued", "drain_s", "slots") if word not in text] == []


def test_fc_51_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A file that is not there stops the start; there is no falling back to defaults without limits."""
    code, text = fairlane("serve", "--config", str(tmp_path / "nowhere.yaml"))
    assert code != 0
    assert "nowhere.yaml" in text
    assert "Traceback" not in text
