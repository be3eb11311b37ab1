"""`fairlane engine`: a server of the OpenAI API without a model, whose timing is that of the simulator's engine."""

import argparse
import asyncio
import math
import resource
import signal
import sys

from fairlane import settings as configuration
from fairlane.engines.address import place
from fairlane.errors import SettingsError
from fairlane.sim.engine.model import EngineModel

_PLAIN = EngineModel()
DESCRIPTION = """Serves the OpenAI API without a model: answers are filler words, and they come when the simulator's engine would
bring them, with continuous batching, chunked prefill and a limited KV cache. A prompt counts one token for 4 characters. An answer's
length is drawn from a log-normal with a median of 200 tokens and capped by max_tokens; with "ignore_eos": true it is max_tokens."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:  # the only name argparse has for it
    """Adds the command."""
    parser = subparsers.add_parser("engine", help="serve a simulated engine in real time", description=DESCRIPTION)
    parser.add_argument("--listen", default="127.0.0.1:8100", metavar="ADDR", help="HOST:PORT (default: %(default)s)")
    parser.add_argument("--model", type=_name, default="simulated", metavar="NAME", help="the model's name (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the lengths of answers (default: %(default)s)")
    for option, size, text in (
        ("--kv-tokens", _PLAIN.kv_tokens, "tokens that the KV cache holds"),
        ("--step-tokens", _PLAIN.step_tokens, "most tokens that one step computes"),
        ("--running-max", _PLAIN.running_max, "most requests that run at once"),
    ):
        parser.add_argument(option, type=_count, default=size, metavar="N", help=f"{text} (default: %(default)s)")
    for option, kind, default, text in (
        ("--speed", _positive, 1.0, "times as fast"),
        ("--step-ms", _positive, _PLAIN.step_s * 1e3, "time of a step"),
        ("--prefill-us-per-token", _amount, _PLAIN.prefill_token_s * 1e6, "more time for each prompt token in it"),
        ("--sequence-us", _amount, _PLAIN.sequence_s * 1e6, "more time for each request in it"),
        ("--kv-ns-per-token", _amount, _PLAIN.kv_token_s * 1e9, "more time for each token in the KV cache"),
    ):
        parser.add_argument(option, type=kind, default=default, metavar="X", help=f"{text} (default: %(default)g)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serves until SIGTERM or Ctrl-C."""
    model = _model(args)
    try:
        host, port = configuration.split_address(args.listen)
    except ValueError as fault:
        raise SettingsError([f"--listen {args.listen}: {fault}"]) from None
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(_serve(args, model, host, port))
    return 0


async def _serve(args: argparse.Namespace, model: EngineModel, host: str, port: int) -> None:
    from fairlane.demo.app import make_app  # noqa: PLC0415 - imports Starlette, which other commands need not wait for
    from fairlane.demo.live import LiveEngine  # noqa: PLC0415
    from fairlane.demo.server import serving  # noqa: PLC0415

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    app = make_app(LiveEngine(model, loop, args.speed), args.model, args.running_max, args.seed)
    async with serving(app, host, port) as (_, given):
        url = f"http://{place(host, given)}"
        print(f"a simulated engine serves {args.model} at {url}/v1; its load is at /metrics", file=sys.stderr, flush=True)
        await stop.wait()


def _model(args: argparse.Namespace) -> EngineModel:
    """The engine of these options; what is wrong between them is told all at once."""
    problems = []
    if args.running_max >= args.step_tokens:
        problems.append(
            f"--running-max ({args.running_max}) must be below --step-tokens ({args.step_tokens}): "
            "a step has a token for each request that runs, and room for a prompt"
        )
    if args.kv_tokens < _PLAIN.block_tokens:
        problems.append(f"--kv-tokens must be at least {_PLAIN.block_tokens}, which is one block")
    if problems:
        raise SettingsError(problems)
    return EngineModel(
        kv_tokens=args.kv_tokens,
        step_tokens=args.step_tokens,
        running_max=args.running_max,
        step_s=args.step_ms / 1e3,
        prefill_token_s=args.prefill_us_per_token / 1e6,
        sequence_s=args.sequence_us / 1e6,
        kv_token_s=args.kv_ns_per_token / 1e9,
    )


def _name(text: str) -> str:
    if not text or not text.isprintable():
        raise argparse.ArgumentTypeError("a model needs a name in printable characters")
    return text


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def _positive(text: str) -> float:
    number = _amount(text)
    if not number:
        raise argparse.ArgumentTypeError("must be above 0")
    return number


def _amount(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 0")
    return number
