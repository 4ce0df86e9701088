"""A server on a file system that loses its power again and again."""

import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

from semel.model.commands import Create
from tests.crash.directory import checkpoints
from tests.crash.load import Load
from tests.crash.mounts import FragileDisk
from tests.crash.process import Process, Zygote
from tests.crash.protocol import Hangup, Job


@dataclass(frozen=True, slots=True)
class PowerReport:
    """The load that was verified, and how often the engine noticed the cut before it was killed."""

    load: Load
    checkpoints: int
    ended_by_itself: int


def cut_power_repeatedly(
    zygote: Zygote, directory: Path, kind: str, cuts: int, seed: int
) -> PowerReport:
    """Run a load, cut the power `cuts` times, and verify everything that was acknowledged.

    Raises AssertionError if something is lost, duplicated or torn. The test is skipped if this
    machine cannot mount the file system.
    """
    random = Random(seed)
    disk = FragileDisk(directory, kind)
    path = disk.path / "data"
    job = Job("serve", str(path), segment_bytes=64 * 1024, checkpoint_interval_ms=25)
    load = Load(random)
    ended_by_itself = 0
    try:
        disk.plug_in()
        process = zygote.serve(job)
        load.create_streams(process.link)
        process.close()
        for _ in range(cuts):
            code = _run_until_cut(zygote, disk, job, load, random.uniform(0.001, 0.150))
            ended_by_itself += code == 74
            disk.pull_out()
            disk.plug_in()
        process = zygote.serve(job)
        load.resume(process.link)
        load.finish(process.link)
        load.verify(process.link)
        process.close()
        return PowerReport(load, checkpoints(path), ended_by_itself)
    finally:
        disk.pull_out()


def _run_until_cut(zygote: Zygote, disk: FragileDisk, job: Job, load: Load, seconds: float) -> int:
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
        code = _wait_or_kill(process)
        assert code in (-9, 74), f"{code}: {process.stderr()}"
        return code
    except Hangup as error:
        raise AssertionError(f"{process.kill()}: {process.stderr()}") from error
    finally:
        process.close()


def _wait_or_kill(process: Process) -> int:
    """Send commands and ignore the responses until the process ends; kill it after 0.2 s."""
    deadline = time.monotonic() + 0.2
    while process.link.is_open and time.monotonic() < deadline:
        process.link.send("submit", Create("after the end", 0, "i"))
        for _ in process.link.receive(0.02):
            pass
    return process.kill() if process.link.is_open else process.wait()
