"""The command line of the benchmarks."""

import argparse
import importlib
import sys
from pathlib import Path

from bench.options import DIRECTORY_DEFAULT, MEMORY_FILE_SYSTEMS, Options, file_system
from bench.report import Figure, save, show

NAMES = ("append", "stall", "restart")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure the engine.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"{', '.join(NAMES)} (all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument("--quick", action="store_true", help="small sizes: a trial, no result")
    parser.add_argument("--dir", default=DIRECTORY_DEFAULT, help="on the disk to measure")
    parser.add_argument("--gib", type=float, default=2.0, help="restart: size of the history")
    parser.add_argument("--streams", type=int, default=100_000, help="restart, stall: streams")
    parsed = parser.parse_args(arguments)
    unknown = set(parsed.names) - set(NAMES)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    return parsed


def main(arguments: list[str]) -> None:
    parsed = parse(arguments)
    kind = file_system(parsed.dir)
    if kind in MEMORY_FILE_SYSTEMS:
        sys.stderr.write(f"{parsed.dir} is in memory ({kind}): a sync there costs nothing\n")
    options = Options(parsed.dir, parsed.quick, parsed.gib, parsed.streams)
    if options.is_quick:
        options = Options(parsed.dir, True, min(parsed.gib, 0.02), min(parsed.streams, 1_000))
    figures: dict[str, list[Figure]] = {}
    for name in parsed.names or NAMES:
        sys.stderr.write(f"{name} ...\n")
        figures[name] = importlib.import_module(f"bench.{name}").run(options)
    show(figures)
    if parsed.json is not None:
        save(parsed.json, figures, kind)


if __name__ == "__main__":
    main(sys.argv[1:])
