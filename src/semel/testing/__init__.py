"""Tools for the tests of semel and of applications that use it.

Servers: `local()` is a process that can be killed, `InProcessServer` runs in the process of the
test. A bad network: `FaultProxy` with its `FaultPlan`. Checkers: `History` and `check_history`, for
transactions `TransactionHistory` and `check_transactions`.

A virtual disk that loses power, and a virtual store that fails:

    disk = VirtualDisk()
    file = disk.create("a", 4096)
    file.write(0, [b"hello"])
    disk.crash(Random(7), "torn_bytes")  # the name "a" was never synced either

Pass an object with `before(operation, name, size)` as `faults` to make an operation fail, write
less than requested, report a sync it has not done, or end the process. All random choices come from
the `Random` that a test passes in.
"""

from semel.client.local import LocalServer, NotStarted, local
from semel.testing.check import History, Operation, Read, Violation, check_history
from semel.testing.disk import VirtualDisk, VirtualFile
from semel.testing.fault_plan import Action, FaultPlan
from semel.testing.fault_proxy import FaultProxy
from semel.testing.in_process import InProcessServer
from semel.testing.storage_faults import (
    CRASH_MODES,
    SECTOR_BYTES,
    CrashMode,
    Death,
    Fail,
    Fault,
    Faults,
    Killed,
    LostSync,
    PowerLost,
    ShortWrite,
    refuse,
)
from semel.testing.store import VirtualReader, VirtualStore, VirtualWriter
from semel.testing.txn.check import TransactionReport, check_transactions
from semel.testing.txn.facts import Anomaly
from semel.testing.txn.history import (
    RecordedChange,
    RecordedTransaction,
    TransactionAppend,
    TransactionHistory,
    TransactionKind,
    TransactionRange,
    TransactionRead,
)

__all__ = [
    "CRASH_MODES",
    "SECTOR_BYTES",
    "Action",
    "Anomaly",
    "CrashMode",
    "Death",
    "Fail",
    "Fault",
    "FaultPlan",
    "FaultProxy",
    "Faults",
    "History",
    "InProcessServer",
    "Killed",
    "LocalServer",
    "LostSync",
    "NotStarted",
    "Operation",
    "PowerLost",
    "Read",
    "RecordedChange",
    "RecordedTransaction",
    "ShortWrite",
    "TransactionAppend",
    "TransactionHistory",
    "TransactionKind",
    "TransactionRange",
    "TransactionRead",
    "TransactionReport",
    "Violation",
    "VirtualDisk",
    "VirtualFile",
    "VirtualReader",
    "VirtualStore",
    "VirtualWriter",
    "check_history",
    "check_transactions",
    "local",
    "refuse",
]
