"""Tools for testing semel, and for testing applications that use semel.

- Servers: `local()` starts a server process that can be killed. `InProcessServer` runs a server in
  the test process.
- Network faults: `FaultProxy` injects the faults that its `FaultPlan` chooses.
- Checkers: `check_history` checks a `History` of appends and reads. `check_transactions` checks a
  `TransactionHistory`.
- Storage faults: `VirtualDisk` simulates power losses and failing operations. `VirtualStore`
  simulates failing commits.

An example of a power loss:

    disk = VirtualDisk()
    file = disk.create("a", 4096)
    file.write(0, [b"hello"])
    disk.crash(Random(7), "torn_bytes")  # neither the write nor the name "a" was synced

To inject a fault into one operation, pass `faults` to `VirtualDisk`: an object with a method
`before(operation, name, size)`. The method returns the fault, or None.
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
