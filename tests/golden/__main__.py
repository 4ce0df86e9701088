"""Records the protocol: `python -m tests.golden --write` rewrites the golden files.

Without `--write` the recording is compared with them, and the exit code is 1 if anything differs.
In both cases the codes of docs/reference/errors.md that are not provoked are printed, with reasons.
"""

import sys
import tempfile
from pathlib import Path

from tests.golden import golden_files
from tests.golden.codes import NOT_PROVOKED, codes_in
from tests.golden.golden_files import Golden, differences
from tests.golden.sections import record


def main(arguments: list[str]) -> int:
    """Record the protocol, then write or compare the golden files; return the exit code."""
    if arguments not in ([], ["--write"]):
        print("usage: python -m tests.golden [--write]", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        live = record(Path(folder))
    if arguments:
        golden_files.write(live)
    print(f"{len(codes_in(live.responses))} codes are provoked; these are not:")
    for code, reason in NOT_PROVOKED.items():
        print(f"  {code}: {reason}")
    return compare(golden_files.load(), live)


def compare(recorded: Golden, live: Golden) -> int:
    """Print all differences; return 1 if there are any."""
    found = False
    for name in Golden._fields:
        sections, now = getattr(recorded, name), getattr(live, name)
        for section in sorted({*sections, *now}):
            text = differences(sections.get(section, ()), now.get(section, ()))
            if text:
                found = True
                print(f"---- {name}.json, {section}\n{text}")
    return int(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
