"""Tools for tests, of semel's own and of the applications that use it.

A server of one's own: `local()` is a process that may be killed, `InProcessServer` lives in the
test. A bad network: `FaultProxy` with its `FaultPlan`. A judge: `History` and `check_history`,
for transactions `TransactionHistory` and `check_transactions`.

And stand-ins for the world: a disk that loses power and a store that fails.

    disk = VirtualDisk()
    file = disk.create("a", 4096)
    file.write(0, [b"hello"])
    disk.crash(Random(7), "torn_bytes")  # the name "a" was never synced either

Give them an object with `before(operation, name, size)` as `faults` to have an operation fail, come
up short, lie or end the process. Everything random comes from the `Random` a test passes in.
"""

from semel.client.local import LocalServer, NotStarted, local
from semel.testing.check import History, Operation, Read, Violation, check_history
from semel.testing.disk import VirtualDisk, VirtualFile
from semel.testing.fault_plan import Action, FaultPlan
from semel.testing.fault_proxy import FaultProxy
from semel.testing.faults import (
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
from semel.testing.in_process import InProcessServer
from semel.testing.power_loss import CRASH_MODES, SECTOR_BYTES, CrashMode
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
