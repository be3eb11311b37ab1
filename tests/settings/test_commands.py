"""`fairlane check` and `fairlane hash-key`, as processes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from fairlane.settings.keys import hash_key
from fairlane.settings.reference import EXAMPLE

SECRET = "sk-not-to-be-seen"
MAIN = """\
import argparse, sys
from fairlane.cli import check, hash_key
parser = argparse.ArgumentParser()
commands = parser.add_subparsers(required=True)
check.add_parser(commands)
hash_key.add_parser(commands)
args = parser.parse_args()
sys.exit(args.run(args))
"""
TABLE = """\
pool   models              engine  kind      slots  kv_tokens  context
main   llama-3.1-8b, fast  gpu0    openai    32     200000     -
main   llama-3.1-8b, fast  gpu1    openai    32     200000     -
small  smollm2-135m        local   embedded  2      -          -

class     min_share  max_wait_s  ttft_slo_s  shed      max_queued  max_queued_cost  max_running
realtime  0.3        8           1.5         deadline  200         -                -
paid      0.15       20          4           deadline  500         -                -
free      0.1        60          -           deadline  500         -                0.5 of slots
batch     0.1        86400       -           deadline  100000      -                -

tenant           class  best_class  weight  tokens/min             requests/min      max_running  max_queued
acme             paid   realtime    2       200000 (burst 400000)  600 (burst 1500)  16           -
(without a key)  free   free        1       -                      -                 2            -

callers: 1 with keys; without a key class free, at best free
listens on 0.0.0.0:8080, admin pages on 127.0.0.1:8081
"""


def fairlane(*arguments: str, given: bytes = b"") -> tuple[int, str, str]:
    """Runs a command and returns its exit code and what it wrote."""
    environment = {**os.environ, "ENGINE_KEY": SECRET}
    command = [sys.executable, "-c", MAIN, *arguments]
    done = subprocess.run(command, input=given, capture_output=True, env=environment, timeout=30, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_check_shows_what_follows_from_a_good_file(tmp_path: Path) -> None:
    """A good file gives OK, its pools and classes in short, and no secret."""
    file = tmp_path / "good.yaml"
    file.write_text(EXAMPLE)
    assert fairlane("check", str(file)) == (0, f"OK  {file}\n\n{TABLE}", "")


def test_check_speaks_json(tmp_path: Path) -> None:
    """Other programs get the same as one object."""
    file = tmp_path / "good.yaml"
    file.write_text(EXAMPLE)
    code, out, _ = fairlane("check", str(file), "--json")
    said = json.loads(out)
    assert (code, said["ok"], said["problems"], len(said["engines"])) == (0, True, [], 3)
    assert said["classes"][2]["class"] == "free"
    assert said["classes"][2]["max_running"] == 0.5
    acme = {"tenant": "acme", "class": "paid", "best_class": "realtime", "weight": 2, "max_running": 16, "max_queued": None}
    acme |= {"requests_per_minute": {"rate": 600, "burst": 1500}, "tokens_per_minute": {"rate": 200000, "burst": 400000}}
    assert said["tenants"] == [acme]
    assert SECRET not in out


def test_check_cuts_a_long_table(tmp_path: Path) -> None:
    """Of many tenants the table shows the first and tells how many more there are; JSON has them all."""
    file = tmp_path / "many.yaml"
    rows = [f'  - {{name: t{n}, class: free, key_hashes: ["sha256:{n:064x}"]}}' for n in range(53)]
    file.write_text("\n".join(["tenants:", *rows]))
    out = fairlane("check", str(file))[1]
    assert "\nt49 " in out
    assert "\nt50 " not in out
    assert "\nand 3 more tenants; --json shows all\n" in out
    assert len(json.loads(fairlane("check", str(file), "--json")[1])["tenants"]) == 53


def test_check_shows_every_fault(tmp_path: Path) -> None:
    """A bad file gives one line a fault, as text or in JSON, and exit code 2."""
    file = tmp_path / "bad.yaml"
    file.write_text("srever: {}\nbacklog: {max_queued: -1}\nanonymous: {class: free}\n")
    faults = [f"{file}:1: srever: unknown key (did you mean 'server'?)", f"{file}:2: backlog.max_queued: must be at least 1, not -1"]
    assert fairlane("check", str(file)) == (2, "\n".join(faults) + "\n", "")
    code, out, _ = fairlane("check", str(file), "--json")
    assert (code, json.loads(out)) == (2, {"ok": False, "problems": faults})


def test_check_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    """An unreadable file is a fault like others, and no file at all is wrong use."""
    assert fairlane("check", str(tmp_path / "no.yaml")) == (2, f"{tmp_path / 'no.yaml'}: cannot be read: No such file or directory\n", "")
    assert fairlane("check")[0] == 2


def test_hash_key_reads_the_key_from_its_input() -> None:
    """The key comes by standard input, with or without a line end, and only the hash goes out."""
    for given in (b"fl-abc", b"fl-abc\n", b"fl-abc\r\n"):
        assert fairlane("hash-key", given=given) == (0, hash_key("fl-abc") + "\n", "")


def test_hash_key_takes_no_key_from_the_command_line() -> None:
    """A key on the command line is refused, since other users could see it there, and is not repeated."""
    code, out, err = fairlane("hash-key", "fl-abc")
    assert (code, out) == (2, "")
    assert "usage" in err
    assert "the key is read from standard input, never from the command line" in err
    assert "fl-abc" not in err


def test_hash_key_refuses_what_no_header_can_carry() -> None:
    """Blanks, several lines and bytes that are no text are refused, and not repeated."""
    for given in (b"a b", b"a\nb\n", "schlüssel".encode(), b"\xff\xfe", b"a\x00"):
        code, out, err = fairlane("hash-key", given=given)
        assert (code, out) == (2, "")
        assert err == "a key is one line of visible ASCII characters without spaces, as an HTTP header carries it\n"


def test_hash_key_without_a_key() -> None:
    """Empty input is told as what it is."""
    for given in (b"", b"\n"):
        assert fairlane("hash-key", given=given) == (2, "", "no key was given\n")


def test_hash_key_makes_a_key() -> None:
    """With --new a key and its hash come out, one a line."""
    code, out, err = fairlane("hash-key", "--new")
    key, digest = out.splitlines()
    assert (code, err) == (0, "")
    assert re.fullmatch(r"fl-[A-Za-z0-9_-]{43}", key)
    assert digest == hash_key(key)
