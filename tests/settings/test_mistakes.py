"""FC-51. Several mistakes at once, and files that cannot be read."""

from pathlib import Path

import pytest

from fairlane.errors import SettingsError
from fairlane.settings import load, parse
from tests.settings.spoil import ENVIRON, GOOD, SECRET, problems


def test_the_file_that_is_spoilt_is_good() -> None:
    """What the cases change is itself in order, so that each fails for its own reason."""
    assert parse(GOOD, "f.yaml", ENVIRON).tenants[0].name == "acme"


def test_fc_51_every_mistake_is_reported_at_once() -> None:
    """Faults of shape, of reference and of environment come together, in the order of the file."""
    text = GOOD
    for old, new in (
        ("  drain_s", "  drian_s"),
        ("    slots: 4", "    slots: 0"),
        ("kind: openai", "kind: embedded"),
        ("max_wait_s: 20", "max_wait_s: 10s"),
        ("max_queued: 50", "max_queued: -1"),
        ("    class: paid", "    class: payed"),
        ('["sha256:', f'["{SECRET}'),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    text = text.replace("${ENGINE_KEY}", "${ENGINE_KY}")
    assert [line.partition(": ")[0] for line in problems(text)] == ["3", "7", "9", "9", "12", "13", "17", "18"]


def test_a_misspelling_is_not_blamed_twice() -> None:
    """What is missing, unknown or uncallable only because a key was misspelt is not reported beside the misspelling."""
    text = GOOD.replace("classes:", "clases:").replace("tenants:", "tenant:").replace("anonymous:", "anonimous:").replace("pools:", "pool:")
    assert [line.partition(":")[2].split(":")[0].strip() for line in problems(text)] == ["pool", "clases", "tenant", "anonimous"]
    assert problems(GOOD.replace("name: paid,", "nmae: paid,")) == ["12: classes[0].nmae: unknown key (did you mean 'name'?)"]
    text = GOOD.replace("    models:", "    modls:").replace("    class: paid", "    class: paid\n    models: [m]")
    assert problems(text) == ["6: pools[0].modls: unknown key (did you mean 'models'?)"]


def test_a_fault_of_a_file_names_the_file(tmp_path: Path) -> None:
    """What cannot be read is refused like what is wrong inside, with the path as it was given."""
    missing, binary, bad = tmp_path / "missing.yaml", tmp_path / "binary.yaml", tmp_path / "bad.yaml"
    binary.write_bytes(b"server: {}\n\xff\xfe")
    bad.write_text("srever: {}\n")
    for path, fault in (
        (missing, f"{missing}: cannot be read: No such file or directory"),
        (tmp_path, f"{tmp_path}: cannot be read: Is a directory"),
        (binary, f"{binary}:2: is not UTF-8 text"),
        (bad, f"{bad}:1: srever: unknown key (did you mean 'server'?)"),
    ):
        with pytest.raises(SettingsError) as caught:
            load(path)
        assert caught.value.problems[0] == fault
