"""A flipped bit is detected or has no effect; wrong data is never served."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.crash.conftest import Report
from tests.crash.directory import (
    CHECKPOINT,
    contents,
    copy,
    flip,
    quick_directory,
    segments,
    vital_files,
)
from tests.crash.process import Zygote
from tests.crash.protocol import Failure
from tests.crash.script import Built, build, small

pytestmark = pytest.mark.crash

FLIPS = int(os.environ.get("SEMEL_FLIPS", "2400"))
# Every run flips the same bits; SEMEL_SEED chooses other bits and SEMEL_FLIPS their number.
SEED = int(os.environ.get("SEMEL_SEED", "20261115"))

CORRUPT = "refused at start"
CORRUPT_READ = "refused at a read"
CORRUPT_LATER = "refused after a restart"
CRASHED = "crashed by a signal"
HARMLESS = "harmless"


@pytest.fixture
def directory() -> Iterator[Path]:
    with quick_directory() as path:
        yield path


def judge(expected: list[object], found: list[object], code: int, stderr: str) -> str:
    """Classify the result of a flip."""
    failures = [value for value in found if isinstance(value, Failure)]
    digests = [value for value in found if isinstance(value, str)]
    if digests != expected[: len(digests)]:
        return f"silent misread: {len(digests)} runs, code {code}"
    if code < 0:
        return CRASHED
    if failures or code == 65:
        first = CORRUPT_READ if failures else CORRUPT
        return CORRUPT_LATER if digests else first
    if code == 0 and digests == expected:
        return HARMLESS
    return f"unexplained: code {code}: {stderr[-600:]}"


def flips(built: Built, count: int, random: Random) -> Iterator[tuple[str, int]]:
    """Choose bits: half of them in the checkpoint, and half of these in bytes that are not 0."""
    others = [path for path in vital_files(built.path) if path.name != CHECKPOINT]
    sizes = [path.stat().st_size for path in others]
    checkpoint = (built.path / CHECKPOINT).read_bytes()
    used = [at for at, byte in enumerate(checkpoint) if byte]
    for number in range(count):
        match number % 4:
            case 0:
                yield CHECKPOINT, random.randrange(8 * len(checkpoint))
            case 1:
                yield CHECKPOINT, 8 * random.choice(used) + random.randrange(8)
            case _:
                path = random.choices(others, sizes)[0] if number % 25 else others[0]
                yield path.name, random.randrange(8 * path.stat().st_size)


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
def test_no_flipped_bit_is_ever_served(
    zygote: Zygote, directory: Path, figure: Report, is_closed: bool
) -> None:
    built = build(zygote, directory / "data", is_closed=is_closed)
    trial = directory / "trial"
    expected, code, stderr = zygote.inspect(small(copy(built.path, trial)))
    assert (len(expected), code) == (2, 0), stderr
    counts: dict[str, Counter[str]] = {"checkpoint": Counter(), "journal": Counter()}
    bad = []
    for name, bit in flips(built, FLIPS // 2, Random(SEED)):
        copy(built.path, trial)
        flip(trial / name, bit)
        verdict = judge(expected, *zygote.inspect(small(trial)))
        counts["checkpoint" if name == CHECKPOINT else "journal"][verdict.split(":")[0]] += 1
        if verdict.startswith(("silent", "unexplained")):
            bad.append(f"{name} bit {bit}: {verdict}")
    variant = "closed" if is_closed else "killed"
    for part, classes in counts.items():
        figure(f"bit flips, {part}, {variant}: {classes.total()} flips, {dict(classes)}")
    assert not bad, f"seed {SEED}: " + "\n".join(bad[:20])


# rows: X11
def test_damage_to_the_last_acked_group_is_corruption_and_no_torn_tail(
    zygote: Zygote, directory: Path, figure: Report
) -> None:
    built = build(zygote, directory / "data", is_closed=False)
    last = segments(built.path)[-1]
    at, end = built.first - int(last.stem), built.end - int(last.stem)
    assert 0 <= at < end, "the last group is not in the last segment"
    random = Random(SEED)
    for position in range(at, end):
        trial = copy(built.path, directory / "trial")
        flip(trial / last.name, 8 * position + random.randrange(8))
        before = contents(trial)
        code, stderr = zygote.inspect(small(trial))[1:]
        assert code == 65, f"byte {position}: {code}: {stderr}"
        assert last.name in stderr
        assert contents(trial) == before, f"byte {position}: the directory was changed"
    figure(f"last acked group: {end - at} bytes, one bit of each flipped, all refused with 65")
