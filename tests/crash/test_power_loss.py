"""After a power failure on a real file system, everything that was acked is on disk."""

import os
import time
from pathlib import Path
from random import Random

import pytest

from semel.model.commands import Create
from tests.crash.conftest import Report
from tests.crash.directory import checkpoints
from tests.crash.load import Load
from tests.crash.mounts import FragileDisk
from tests.crash.process import Process, Zygote
from tests.crash.protocol import Hangup, Job

pytestmark = [pytest.mark.crash, pytest.mark.root]

CUTS = int(os.environ.get("SEMEL_POWER_CUTS", "40"))
SEED = int(os.environ.get("SEMEL_SEED", "0")) or time.time_ns() % 1_000_000_000


def run_until_cut(zygote: Zygote, disk: FragileDisk, job: Job, load: Load, seconds: float) -> int:
    """Serve for some seconds, cut the power, and return how the process ended."""
    process = zygote.start(job)
    try:
        process.ready()
        load.resume(process.link)
        load.run(process.link, seconds)
        load.take(process.link.receive(0))
        disk.cut_power()
        # Responses after the cut do not count, because a sync that was in progress may report
        # success here. The engine may notice the failure and exit with 74.
        code = wait_or_kill(process)
        assert code in (-9, 74), f"{code}: {process.stderr()}"
        return code
    except Hangup as error:
        raise AssertionError(f"{process.kill()}: {process.stderr()}") from error
    finally:
        process.close()


def wait_or_kill(process: Process) -> int:
    """Send commands and ignore the responses until the process ends; kill it after 0.2 s."""
    deadline = time.monotonic() + 0.2
    while process.link.is_open and time.monotonic() < deadline:
        process.link.send("submit", Create("after the end", 0, "i"))
        for _ in process.link.receive(0.02):
            pass
    return process.kill() if process.link.is_open else process.wait()


# rows: P20
def test_nothing_acked_is_lost_when_the_power_fails(
    zygote: Zygote, tmp_path: Path, figure: Report
) -> None:
    random = Random(SEED)
    disk = FragileDisk(tmp_path, 64)
    path = disk.path / "data"
    job = Job("serve", str(path), segment_bytes=64 * 1024, checkpoint_interval_ms=25)
    load = Load(random)
    ended_by_itself = 0
    try:
        disk.plug_in()
        process = zygote.serve(job)
        load.create_streams(process.link)
        process.close()
        for _ in range(CUTS):
            code = run_until_cut(zygote, disk, job, load, random.uniform(0.001, 0.150))
            ended_by_itself += code == 74
            disk.pull_out()
            disk.plug_in()
        process = zygote.serve(job)
        load.resume(process.link)
        load.finish(process.link)
        load.verify(process.link)
        process.close()
        done = checkpoints(path)
    except BaseException as error:
        error.add_note(f"seed: SEMEL_SEED={SEED}")
        raise
    finally:
        disk.pull_out()
    assert load.acked > CUTS
    figure(
        f"power loss on ext4: {CUTS} cuts, {load.acked} acked, 0 lost, 0 duplicated, 0 torn;"
        f" {done} checkpoints, {load.duplicates} duplicates answered,"
        f" {ended_by_itself} times the engine ended itself with 74 first; seed {SEED}"
    )
