"""After a power failure on a real file system, everything that was acked is on disk."""

import os
import time
from pathlib import Path

import pytest

from tests.crash.conftest import Report
from tests.crash.mounts import FILE_SYSTEMS
from tests.crash.power import cut_power_repeatedly
from tests.crash.process import Zygote

pytestmark = [pytest.mark.crash, pytest.mark.root]

CUTS = int(os.environ.get("SEMEL_POWER_CUTS", "40"))
SEED = int(os.environ.get("SEMEL_SEED", "0")) or time.time_ns() % 1_000_000_000


# rows: P20
@pytest.mark.parametrize("kind", FILE_SYSTEMS)
def test_nothing_acked_is_lost_when_the_power_fails(
    zygote: Zygote, tmp_path: Path, figure: Report, kind: str
) -> None:
    try:
        report = cut_power_repeatedly(zygote, tmp_path, kind, CUTS, SEED)
    except BaseException as error:
        error.add_note(f"seed: SEMEL_SEED={SEED}")
        raise
    load = report.load
    assert load.acked > CUTS
    figure(
        f"power loss on {kind}: {CUTS} cuts, {load.acked} acked, 0 lost, 0 duplicated, 0 torn;"
        f" {report.checkpoints} checkpoints, {load.duplicates} duplicates answered,"
        f" {report.ended_by_itself} times the engine ended itself with 74 first; seed {SEED}"
    )
