"""The server is killed with SIGKILL many times, under load."""

import os
import time
from pathlib import Path
from random import Random

import pytest

from tests.crash.conftest import Report
from tests.crash.directory import checkpoints, segments
from tests.crash.load import Load
from tests.crash.process import Process, Zygote
from tests.crash.protocol import Job

pytestmark = pytest.mark.crash

KILLS = int(os.environ.get("SEMEL_KILLS", "200"))
SEED = int(os.environ.get("SEMEL_SEED", "0")) or time.time_ns() % 1_000_000_000


class Loop:
    """Starts and kills a server on one directory, many times."""

    def __init__(self, zygote: Zygote, job: Job, random: Random) -> None:
        self._zygote = zygote
        self._job = job
        self._random = random
        self.load = Load(random)
        self.replayed = 0
        self.in_recovery = 0

    def first(self) -> None:
        process = self._zygote.serve(self._job)
        self.load.create_streams(process.link)
        process.close()

    def run_and_kill(self) -> None:
        process = self._zygote.start(self._job)
        try:
            if self._random.random() < 0.15:
                # Kill the process during recovery.
                time.sleep(self._random.uniform(0, 0.015))
                self.in_recovery += 1
            else:
                self.replayed += process.ready().replayed_frames
                self._run_load(process)
            code = process.kill()
            assert code == -9, f"the process ended by itself: {code}: {process.stderr()}"
            self.load.take(process.link.drain())
        finally:
            process.close()

    def _run_load(self, process: Process) -> None:
        self.load.resume(process.link)
        self.load.run(process.link, self._random.uniform(0.001, 0.060))

    def last(self) -> None:
        process = self._zygote.serve(self._job)
        try:
            self.load.resume(process.link)
            self.load.finish(process.link)
            self.load.verify(process.link)
            process.link.ask("close")
            assert process.wait() == 0
        finally:
            process.close()


# rows: D01, D15, P16, P20, X18, X19
def test_nothing_acked_is_lost_doubled_or_torn_by_kills(
    zygote: Zygote, tmp_path: Path, figure: Report
) -> None:
    path = tmp_path / "data"
    job = Job("serve", str(path), segment_bytes=64 * 1024, checkpoint_interval_ms=25)
    loop = Loop(zygote, job, Random(SEED))
    try:
        loop.first()
        for _ in range(KILLS):
            loop.run_and_kill()
        loop.last()
    except BaseException as error:
        error.add_note(f"seed: SEMEL_SEED={SEED}")
        raise
    load, files = loop.load, segments(path)
    assert load.acked > 10 * KILLS
    assert load.duplicates > KILLS
    assert loop.replayed > KILLS
    assert checkpoints(path) > KILLS // 3
    assert int(files[0].stem) > 0, "no segment was ever unlinked"
    figure(
        f"crash loop: {KILLS} kills ({loop.in_recovery} in recovery), {load.acked} acked,"
        f" 0 lost, 0 duplicated, 0 torn; {load.duplicates} duplicates answered,"
        f" {checkpoints(path)} checkpoints, {loop.replayed} frames replayed,"
        f" {int(files[-1].stem) // 1024} KiB of journal, {len(files)} segments left,"
        f" {dict(load.keeper.done)}; seed {SEED}"
    )
