"""Run the simulator: `python -m tests.sim [--seeds N] [--first N] [--jobs N]`.

The run prints the count of every outcome and its minimum (floor): a case that never occurred was
not tested.
"""

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from tests.sim.demands import Violation
from tests.sim.exhaustive import check_all
from tests.sim.hunt import seeds_until_caught
from tests.sim.mutants import MUTANTS
from tests.sim.run import run_seed

SEEDS_DEFAULT = 1_000
TWICE_EVERY = 20
HUNT_SEEDS_MAX = 300

# Minimum counts for 1,000 seeds; they are scaled for other numbers of seeds.
FLOORS = {
    "operations": 700_000,
    "crashes": 7_000,
    "images": 3_000,
    "crash in recovery": 100,
    "fail-stop": 200,
    "queued after a waiting command": 300,
    "checkpoints": 2_000,
    "checkpoint without room": 50,
    "segments unlinked": 200,
    "full replays compared": 1_000,
    "lost in a crash, never answered": 3_000,
    "reads": 10_000,
    "flip refused at start": 50,
    "flip refused at a read": 20,
    "flip harmless": 50,
    "Appended": 50_000,
    "Duplicate": 8_000,
    "Created": 5_000,
    "StaleEpoch": 3_000,
    "SequenceGap": 1_000,
    "StreamClosed": 1_000,
    "ConfigConflict": 1_000,
    "NotFound": 1_000,
    "Deleted": 1_000,
    "Trimmed": 1_000,
    "Expired": 500,
    "DiskFull": 300,
    "Gone": 300,
    "Registered": 500,
    "Claimed": 500,
    "DedupOff": 10,
    "PolicySet": 2_000,
    "PolicyDeleted": 150,
    "UnknownPolicy": 300,
    "appends that carry a switch": 500,
    "UnknownProducer": 500,
    "BadBody": 500,
    "InvalidRequest": 1_000,
    "ContentTypeConflict": 300,
    "PreconditionFailed": 300,
    "StreamSeqConflict": 100,
    "KeyReused": 300,
    "LimitReached": 300,
    "ModeConflict": 300,
    "SessionUnknown": 300,
    "StaleSession": 50,
    "SessionConflict": 20,
    "BatchOverlap": 300,
    "SequenceHole": 20,
    "ReceiptExpired": 70,
    "confirmed repeats of sparse producers": 1_000,
    "RestartAmbiguous": 100,
    "PayloadMismatch": 100,
    "EpochMustStartAtZero": 50,
    "ProducerStateExpired": 100,
    "SubOffsetInvalid": 50,
    "OffsetBeyondTail": 50,
    "OffsetTrimmed": 20,
    "ForkSourceGone": 10,
    "StillAlive": 100,
    "Forgotten": 100,
    "Retired": 4_000,
    "Retired, at least one": 600,
    "DropDone": 2_000,
    "DropDone, at least one": 150,
    "LimitReached, expiring_producers_per_stream": 500,
    "Begun": 20_000,
    "ExtendDone": 6_000,
    "Staged": 6_000,
    "Prepared": 5_000,
    "CommitDone": 20_000,
    "AbortDone": 7_000,
    "PositionsSet": 2_000,
    "Pinned": 1_000,
    "SinkChanged": 300,
    "UnknownTransaction": 3_000,
    "StaleTransaction": 500,
    "NotOwner": 1_000,
    "InvalidTxnState": 10_000,
    "TxnTimedOut": 1_000,
    "AlreadyAborted": 1_000,
    "AlreadyCommitted": 500,
    "ConcurrentTransactions": 5_000,
    "TooManyTransactions": 10,
    "PartitionNotInTxn": 2_000,
    "StreamInTransaction": 100,
    "OffsetUnstable": 200,
    "BranchIncomplete": 300,
    "BranchMissing": 30,
    "PositionConflict": 6_000,
    "PositionConflict, incarnation": 700,
    "PositionConflict, pending": 700,
    "PositionConflict, offset": 700,
    "PositionConflict, version": 700,
    "PositionConflict, mover": 700,
    "PositionConflict, moved": 500,
    "PositionConflict, deleted": 700,
    "UnstableOffsets": 600,
    "InvalidRequest, positions": 60,
    "LimitReached, transaction_positions": 60,
    "LimitReached, groups_per_stream": 15,
    "AppBound": 500,
    "CheckpointDiverged": 1_000,
    "VersionForgotten": 20,
    "UnknownSink": 300,
    "SnapshotConflict": 100,
    "IncarnationConflict": 200,
    "StreamRefused": 2_000,
    "refusals of access": 50_000,
    "Forbidden": 20_000,
    "Unauthenticated": 5_000,
    "ReservedPath": 200,
    "TokenStored": 3_000,
    "TokenEnded": 900,
    "UnknownToken": 500,
    "LimitReached, tokens_per_principal": 15,
    "UsesNoted": 700,
    "OwnerSet": 700,
    "UnknownThing": 1_000,
    "owners taken": 8_000,
    "owners separated from their command": 10,
    "records of the audit": 1_000,
    "TopicCreated": 820,
    "TopicGrown": 150,
    "TopicDeleted": 94,
    "TopicClosed": 12,
    "TopicStored": 6_000,
    "TopicStored, several parts": 1_400,
    "TopicStored, in a transaction": 450,
    "TopicStored, duplicate": 890,
    "TopicStored, without parts": 130,
    "duplicates after a growth": 110,
    "PartitionsChanged": 220,
    "NoSuchPartition": 69,
    "KeysWouldMove": 67,
    "TooFewPartitions": 20,
    "TopicConflict": 120,
    "TopicNotFound": 4_700,
    "StreamExists": 160,
    "StreamInTopic": 320,
    "IsTopic": 2_500,
    "Joined": 10_000,
    "Left": 9_700,
    "Released": 7_400,
    "Rebalanced": 14_000,
    "IllegalGeneration": 1_400,
    "GroupIsShared": 710,
    "GroupDeleted": 7,
    "GroupInUse": 120,
    "UnknownGroup": 540,
    "UnknownMember": 500,
    "PositionConflict, growth": 65,
    "streams given to members": 40_000,
    "streams given at the next epoch": 27_000,
    "streams asked back": 5_000,
    "streams taken from slow members": 170,
    "streams that wait for a transaction": 220,
    "changes of groups in several frames": 1_300,
    "positions set to the end": 430,
    "starts after a crash": 46_000,
    "members ended": 8_400,
    "heartbeats of members": 53_000,
    "heartbeats of others": 6_500,
    "SubscriptionCreated": 2_800,
    "SubscriptionExists": 800,
    "SubscriptionDeleted": 600,
    "UnknownSubscription": 1_700,
    "LimitReached, subscriptions": 90,
    "LimitReached, subscription_names": 80,
    "LimitReached, subscription_streams": 20,
    "WakeStreamRefused": 900,
    "WakeAcked": 5_600,
    "WakeClaimed": 1_400,
    "AlreadyClaimed": 800,
    "NoPendingWork": 1_200,
    "Fenced": 9_800,
    "InvalidOffset": 640,
    "wakes issued": 8_300,
    "messages about wakes": 1_500,
    "wakes ended by their lease": 1_200,
    "acks in commits": 1_500,
    "deliveries": 8_300,
    "deliveries again": 800,
    "suspensions": 530,
    "suspensions ended": 130,
    "dead letters compared": 4_200,
    "replayed dead letters compared": 2_200,
    "read_committed": 5_000,
    "read_uncommitted": 5_000,
}


def _run_one(seed: int) -> Counter[str]:
    result = run_seed(seed)
    if seed % TWICE_EVERY == 0:
        if run_seed(seed).digest != result.digest:
            raise Violation(f"two runs of seed {seed} have different results")
        result.counts["seeds run twice, identical"] += 1
    return result.counts


def _images(seed: int) -> Counter[str]:
    try:
        return Counter(images=check_all(seed))
    except Violation as violation:
        raise Violation(f"crash images of seed {seed}: {violation}") from violation


def _hunt(index: int) -> Counter[str]:
    mutant = MUTANTS[index]
    caught = seeds_until_caught(mutant, HUNT_SEEDS_MAX)
    if caught is None:
        raise Violation(f"the seeded bug {mutant.__name__} was not caught")
    return Counter({f"caught: {mutant.__name__}, at seed": caught[0] - 1, "seeded bugs caught": 1})


def _gather(
    pool: ProcessPoolExecutor, work: Callable[[int], Counter[str]], items: Iterable[int], name: str
) -> Counter[str]:
    items = list(items)
    total: Counter[str] = Counter()
    started = time.monotonic()
    for done, counts in enumerate(pool.map(work, items, chunksize=1), 1):
        total.update(counts)
        if done == len(items) or done % 100 == 0:
            seconds = time.monotonic() - started
            _say(f"{name}: {done} of {len(items)} after {seconds:.0f} s")
    return total


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _report(total: Counter[str], seeds: int) -> int:
    """Print the counts; return how many are below their floor."""
    missed = 0
    for name, count in sorted(total.items()):
        floor = FLOORS.get(name, 0) * seeds // SEEDS_DEFAULT
        mark = "" if count >= floor else "   BELOW THE FLOOR"
        missed += count < floor
        _say(f"  {name:44} {count:>9,}" + (f"   floor {floor:,}{mark}" if floor else ""))
    for name in sorted(FLOORS.keys() - total.keys()):
        _say(f"  {name:44} {0:>9,}   NEVER HAPPENED")
        missed += 1
    return missed


def main(arguments: list[str] | None = None) -> int:
    """Run seeds, crash images and seeded bugs; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS_DEFAULT)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    options: Any = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    image_seeds = range(options.first, options.first + max(1, options.seeds // 50))
    context = multiprocessing.get_context("fork")
    try:
        with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
            total = _gather(pool, _run_one, seeds, "seeds")
            total.update(_gather(pool, _images, image_seeds, "recorded runs"))
            total.update(_gather(pool, _hunt, range(len(MUTANTS)), "seeded bugs"))
    except Violation as violation:
        _say(f"VIOLATION {violation}")
        return 1
    missed = _report(total, options.seeds)
    _say(
        f"simulation: {total['operations']:,} operations, {total['crashes']:,} crashes, "
        f"{total['images']:,} crash images, 0 violations, "
        f"{total['seeded bugs caught']} of {len(MUTANTS)} seeded bugs caught, "
        f"{missed} floors missed"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
