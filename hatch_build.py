"""Compiles the hot path when a wheel is built: mypyc turns the very same files into C extensions, which Python prefers.

FAIRLANE_COMPILE=0 leaves it out, FAIRLANE_COMPILE=1 insists. Unset, it is done where a C compiler and Python's headers are found, and
left out where it fails.
The folders are named in pyproject.toml; see docs/decisions/0009.
"""

import os
import shutil
import sysconfig
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CHOICE = "FAIRLANE_COMPILE"


def obstacle() -> str | None:
    """What is missing for compiling, in words; None if nothing is."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler '{compiler}'"
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return None if headers.exists() else f"Python's headers are missing ({headers})"


def modules(root: Path, patterns: list[str]) -> list[str]:
    """The files that the patterns name, without those that only say what a package is for."""
    return sorted(str(path) for pattern in patterns for path in root.glob(pattern) if path.name != "__init__.py")


def side_by_side(compile_files: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """A compiler's `compile`, with a file for each core under way."""

    def each(sources: list[str], **options: object) -> list[str]:
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            return [made for files in threads.map(lambda source: compile_files([source], **options), sources) for made in files]

    return each


class CustomBuildHook(BuildHookInterface[Any]):
    """Adds the extensions to a wheel. An editable install stays source."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless it is not wanted or cannot be done."""
        choice = os.environ.get(CHOICE, "")
        if version == "editable" or choice == "0":
            return
        missing = obstacle()
        if missing:
            if choice == "1":
                raise SystemExit(f"{CHOICE}=1, but {missing}")
            self.app.display_warning(f"not compiled: {missing}; Fairlane runs, and takes about twice the CPU time for a request")
            return
        self._built = tempfile.TemporaryDirectory(prefix="fairlane-build-")
        try:
            extensions = self._compile(Path(self._built.name))
        except (Exception, SystemExit) as error:
            if choice == "1":
                raise
            self.app.display_warning(f"not compiled, because compiling failed ({error!r}); {CHOICE}=1 shows why")
            return
        for extension in extensions:
            build_data["force_include"][str(extension)] = str(extension.relative_to(self._built.name))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was built once the wheel holds it."""
        if hasattr(self, "_built"):
            self._built.cleanup()

    def _compile(self, folder: Path) -> list[Path]:
        """Build the extensions into `folder`, laid out as in the package."""
        from mypyc.build import mypycify  # noqa: PLC0415 - where nothing is compiled it is not needed
        from setuptools import Distribution  # noqa: PLC0415
        from setuptools.command.build_ext import build_ext  # noqa: PLC0415

        root = Path(self.root)
        os.environ["MYPYPATH"] = str(root / "src")
        extensions = mypycify(
            ["--config-file=", "--ignore-missing-imports", *modules(root, self.config["modules"])],
            opt_level="2",
            debug_level="0",
            multi_file=True,
            target_dir=str(folder / "c"),
            group_name="fairlane",
        )
        command = build_ext(Distribution({"name": "fairlane", "ext_modules": extensions}))
        command.build_lib, command.build_temp = str(folder), str(folder / "objects")
        in_turn = command.build_extensions

        def build_extensions() -> None:
            command.compiler.compile = side_by_side(command.compiler.compile)
            in_turn()

        command.build_extensions = build_extensions
        command.ensure_finalized()
        command.run()
        return [Path(output) for output in command.get_outputs()]
