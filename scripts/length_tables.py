"""Make the length tables that ship with the simulator from downloaded traces.

    python scripts/length_tables.py FOLDER

FOLDER holds `azure2023_conv.csv.gz`, `azure2023_code.csv.gz` and `mooncake_conversation.csv.gz` with the columns `input_tokens` and
`output_tokens`. Rows are sorted by prompt, then by answer, and every n-th is kept: a systematic sample, which keeps the joint
distribution. Where it begins is chosen so that the means, the 99th percentile of answers too, are nearest to those of the trace.
"""

import csv
import gzip
import sys
from pathlib import Path
from statistics import mean

DATA = Path(__file__).parents[1] / "src" / "fairlane" / "sim" / "data"
STARTS = 200  # places to begin at that are tried
SOURCES = {
    "azure2023_conv": ("azure2023_conv.csv.gz", 2000, None),
    "azure2023_code": ("azure2023_code.csv.gz", 1500, None),
    "mooncake": ("mooncake_conversation.csv.gz", 1500, 24_000),
}


def sample(path: Path, rows: int, input_max: int | None) -> list[tuple[int, int]]:
    """Rows of a trace, evenly spaced in the order of their sizes; those with a longer prompt than `input_max` left out."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
        pairs = [(int(row["input_tokens"]), int(row["output_tokens"])) for row in csv.DictReader(lines)]
    pairs = sorted(pair for pair in pairs if min(pair) >= 1 and (input_max is None or pair[0] <= input_max))
    step = len(pairs) / rows
    aim = figures(pairs)
    starts = [[pairs[int((i + start / STARTS) * step)] for i in range(rows)] for start in range(STARTS)]
    return min(starts, key=lambda some: sum(abs(a / b - 1) for a, b in zip(figures(some), aim, strict=True)))


def figures(pairs: list[tuple[int, int]]) -> tuple[float, ...]:
    """What a sample has to keep: mean prompt, mean answer, and the answer that one in a hundred exceeds."""
    prompts, answers = zip(*pairs, strict=True)
    return mean(prompts), mean(answers), sorted(answers)[int(0.99 * len(answers))]


def main(folder: Path) -> None:
    """Write all tables."""
    for name, (source, rows, input_max) in SOURCES.items():
        pairs = sample(folder / source, rows, input_max)
        text = "input_tokens,output_tokens\n" + "".join(f"{a},{b}\n" for a, b in pairs)
        target = DATA / f"{name}.csv.gz"
        target.write_bytes(gzip.compress(text.encode("ascii"), 9, mtime=0))
        print(target.name, rows, "rows,", target.stat().st_size, "bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
