"""The command line: the only place where the parts of the product meet."""

import argparse
import sys
from importlib import import_module
from importlib.util import find_spec

from fairlane import __version__
from fairlane.errors import FairlaneError

COMMANDS = ("serve", "check", "hash_key", "simulate", "engine", "predict")


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 done, 1 failed, 2 wrong use or configuration."""
    parser = argparse.ArgumentParser(prog="fairlane", description="Admission and scheduling gateway for LLM inference.")
    parser.add_argument("--version", action="version", version=f"fairlane {__version__} ({_build()})")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        import_module(f"fairlane.cli.{name}").add_parser(commands)
    args, unknown = parser.parse_known_args(argv)
    if unknown:  # the command's own usage helps, that of the whole program does not
        commands.choices[args.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        code: int = args.run(args)
    except FairlaneError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return code


def _build() -> str:
    """How this installation was built: `hatch_build.py` compiles the hot path where it can."""
    core = find_spec("fairlane.core.scheduler")
    return "source" if core is None or core.origin is None or core.origin.endswith(".py") else "compiled"
