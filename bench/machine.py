"""What the kernel knows: CPU time of a process tree, cores to pin to, free ports, and which machine this is."""

import os
import platform
import re
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

CORES = sorted(os.sched_getaffinity(0))
FAIRLANE = str(Path(sys.executable).with_name("fairlane"))
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_s(root: int) -> float:
    """CPU seconds that a process and its living descendants have used, exact to a tick (10 ms) each."""
    parent, used = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # ended while we looked
            continue
        pid = int(path.parent.name)
        parent[pid], used[pid] = int(fields[1]), int(fields[11]) + int(fields[12])

    def belongs(pid: int) -> bool:
        return pid == root or (pid in parent and belongs(parent[pid]))

    return TICK_S * sum(ticks for pid, ticks in used.items() if belongs(pid))


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def said(*command: str) -> str:
    """What a command prints, on either stream, or nothing where it cannot be run."""
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def describe() -> dict[str, str]:
    """The machine and the versions that a figure belongs to."""
    processor = (re.findall("model name.*: (.*)", Path("/proc/cpuinfo").read_text()) or [platform.machine()])[0]
    return {
        "machine": f"{processor}, {len(CORES)} cores, Linux {platform.release()}, load {os.getloadavg()[0]:.1f}",
        "python": ", ".join([platform.python_version(), *(f"{name} {version(name)}" for name in ("uvloop", "httptools", "orjson"))]),
        "fairlane": f"{said(FAIRLANE, '--version')} {said('git', 'describe', '--always', '--dirty')}".strip(),
    }
