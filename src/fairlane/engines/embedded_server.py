"""The child process in which the embedded engine runs: llama.cpp's own HTTP server, on a port of loopback that is free.

`python -m fairlane.engines.embedded_server --model FILE --name NAME --slots N --context N` prints one JSON line with the
server's URL once the model is loaded, and nothing else on standard output; llama.cpp's words go to standard error.

It ends on SIGTERM and when its standard input ends, which is how it follows its parent into death, whatever killed that.
A thread could not watch the input: loading a model holds the interpreter's lock from first to last, perhaps for minutes.
So the kernel watches, and sends SIGTERM, whose default action needs no interpreter.
"""

import argparse
import fcntl
import json
import os
import select
import signal
import sys

import xllamacpp

# What llama.cpp may keep of former prompts, in MiB. Its own default of 8 GiB would surprise whoever tries Fairlane on a
# laptop; this is some ten thousand tokens of the demonstration model.
PROMPT_CACHE_MIB = 256
WARNINGS = 2  # of llama.cpp's log levels: what it says of each request would be noise


def main() -> int:
    """Serve until told to end; return the exit status when the model cannot be served."""
    arguments = _arguments()
    ready = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _end_with_input()
    try:
        server = xllamacpp.Server(_parameters(arguments))
    except RuntimeError as fault:
        print(f"llama.cpp cannot serve {arguments.model}: {fault}", file=sys.stderr)  # noqa: T201 - its parent listens
        return 1
    with ready:
        ready.write(json.dumps({"url": server.listening_address}) + "\n")
    while os.read(0, 4096):
        pass
    os._exit(0)  # there is nothing to save, and an orderly end would wait for the requests that run


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fairlane.engines.embedded_server")
    parser.add_argument("--model", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--context", type=int, required=True, help="tokens of one slot")
    return parser.parse_args()


def _end_with_input() -> None:
    """Make the end of standard input deadly from now on. A terminal is left alone, as it is shared with the shell."""
    if sys.platform == "linux" and not os.isatty(0):
        fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(0, fcntl.F_SETSIG, signal.SIGTERM)
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
        if select.select([0], [], [], 0)[0]:  # it ended before the kernel began to watch
            sys.exit(0)


def _parameters(arguments: argparse.Namespace) -> xllamacpp.CommonParams:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = arguments.model
    parameters.model_alias = {arguments.name}
    parameters.n_parallel = arguments.slots
    parameters.n_ctx = arguments.slots * arguments.context
    parameters.fit_params = False  # never shrinks the context to what memory is free just now
    parameters.cont_batching = True
    # More threads than free cores spin against each other: with two beside a busy process, answers stall for seconds.
    parameters.cpuparams.n_threads = 1
    parameters.cpuparams_batch.n_threads = 1
    parameters.cache_ram_mib = PROMPT_CACHE_MIB
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.cors_origins = ""  # pages in a browser on this machine must not read from it
    parameters.ui = False
    parameters.endpoint_metrics = True
    parameters.endpoint_slots = True
    parameters.verbosity = WARNINGS
    return parameters


if __name__ == "__main__":
    sys.exit(main())
