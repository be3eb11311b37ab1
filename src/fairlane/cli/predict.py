"""`fairlane predict`: how well the lengths of answers are foretold on recorded requests, and models trained on them."""

import argparse
import json
from pathlib import Path

from fairlane.errors import FairlaneError
from fairlane.lab import trained
from fairlane.lab.records import Conversations, read
from fairlane.lab.replay import replay
from fairlane.lab.scores import scores
from fairlane.lab.train import train
from fairlane.predict.predictor import LengthModel, Predictor


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:  # the only name argparse has for it
    """Adds the command and its two parts."""
    parser = subparsers.add_parser("predict", help="score or train the predictor of answer lengths", description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    scored = parts.add_parser("eval", help="score predictions on a trace, each made from the past only")
    scored.add_argument("--trace", type=Path, required=True, metavar="FILE", help="a .csv or .csv.gz of requests")
    scored.add_argument("--model", type=Path, metavar="MODEL", help="what `predict train` wrote; without it nothing is known at first")
    scored.add_argument("--last", type=_share, default=1.0, metavar="SHARE", help="score only this last share of the requests")
    scored.add_argument("--json", action="store_true", help="print one JSON object for other programs")
    scored.set_defaults(run=evaluate)
    fitted = parts.add_parser("train", help="train a model on a trace")
    fitted.add_argument("--data", type=Path, required=True, metavar="FILE", help="a .csv or .csv.gz of requests")
    fitted.add_argument("--out", type=Path, required=True, metavar="MODEL", help="the file to write")
    fitted.set_defaults(run=fit)


def evaluate(args: argparse.Namespace) -> int:
    """Prints the scores and returns 0."""
    lengths: LengthModel = Predictor()
    conversations: Conversations = {}
    if args.model is not None:
        lengths, conversations = trained.read(args.model)
    foretold = list(replay(read(args.trace, conversations), lengths))
    figures = scores(foretold[-max(1, round(args.last * len(foretold))) :])
    if args.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:10} {'-' if value is None else format(value, '.6g')}" for name, value in figures.items()))
    return 0


def fit(args: argparse.Namespace) -> int:
    """Writes the model and returns 0."""
    if not args.out.parent.is_dir():  # told before the training, not after it
        raise FairlaneError(f"{args.out}: there is no folder {args.out.parent}")
    conversations: Conversations = {}
    records = list(read(args.data, conversations))
    trained.write(args.out, train(records), conversations)
    print(f"{args.out}: trained on {len(records):,} requests")
    return 0


def _share(text: str) -> float:
    share = float(text)
    if not 0.0 < share <= 1.0:
        raise argparse.ArgumentTypeError("must be above 0 and at most 1")
    return share
