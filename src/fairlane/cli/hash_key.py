"""`fairlane hash-key`: turns a key into the line for `key_hashes`, so that no file has to hold the key itself.

A key is read from standard input or asked for, never taken from the command line, where the shell's history and the list
of processes would keep it.
"""

import argparse
import getpass
import sys

from fairlane.settings.keys import hash_key, new_key


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:  # the only name argparse has for it
    """Adds the command."""
    parser = subparsers.add_parser("hash-key", help="hash a key for key_hashes", description=__doc__)
    parser.add_argument("--new", action="store_true", help="make a key; print it, and its hash on the next line")
    parser.add_argument("given", nargs="*", help=argparse.SUPPRESS)  # seen here, so that argparse does not repeat it
    parser.set_defaults(run=run, refuse=parser.error)


def run(args: argparse.Namespace) -> int:
    """Prints the hash and returns 0, or says what is wrong with the key, without repeating it, and returns 2."""
    if args.given:
        args.refuse("the key is read from standard input, never from the command line")
    if args.new:
        key = new_key()
        print(key)
        print(hash_key(key))
        if sys.stderr.isatty():
            print(
                "The first line is the key: give it to the caller, it is not stored. The second belongs under key_hashes.", file=sys.stderr
            )
        return 0
    key = _read()
    if not key:
        print("no key was given", file=sys.stderr)
        return 2
    if not (key.isascii() and key.isprintable()) or " " in key:
        print("a key is one line of visible ASCII characters without spaces, as an HTTP header carries it", file=sys.stderr)
        return 2
    print(hash_key(key))
    return 0


def _read() -> str:
    """The key without its line end; what is no text is left for the caller to refuse."""
    if not sys.stdin.isatty():
        return sys.stdin.buffer.read().decode(errors="replace").rstrip("\r\n")
    try:
        return getpass.getpass("Key: ")
    except EOFError:
        return ""
