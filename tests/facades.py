"""Generates semel.client.sync from semel.client.aio: python -m tests.facades, or `make facades`.

`unasync` removes `async` and `await` and renames classes; ruff sorts the imports and formats.
`await` and `async` are also removed from code in docstrings. The generated files are committed, for
reading, search and type checks; tests/unit/client/test_facades.py fails if they are out of date.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import unasync

CLIENT = Path(__file__).resolve().parents[1] / "src/semel/client"
ASYNC, SYNC = CLIENT / "aio", CLIENT / "sync"
MODULES = (
    "catalog",
    "client",
    "consumer",
    "group",
    "processing",
    "stream",
    "subscriptions",
    "topic",
    "transaction",
)
COMMAND = "make facades"
HEADER = "# generated from semel/client/aio/{name}.py by `make facades`; do not edit\n"

CLASSES = (
    "AsyncAccess",
    "AsyncCatalog",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncDeadLetters",
    "AsyncFieldValue",
    "AsyncGroup",
    "AsyncHeartbeats",
    "AsyncLease",
    "AsyncMessageCommitter",
    "AsyncProducer",
    "AsyncRead",
    "AsyncSink",
    "AsyncSinkTask",
    "AsyncStop",
    "AsyncStream",
    "AsyncSubscriptions",
    "AsyncTail",
    "AsyncTopic",
    "AsyncTopicRead",
    "AsyncTopicTail",
    "AsyncTransaction",
    "AsyncWake",
    "AsyncWakeProcessor",
    "AsyncWakeup",
    "AsyncWorker",
    "AsyncWorkerStop",
)
# unasync itself renames AsyncDriver, AsyncLock and AsyncTransform to SyncDriver and so on.
NAMES = {name: name.removeprefix("Async") for name in CLASSES} | {
    "AsyncExitStack": "ExitStack",
    "push_async_callback": "callback",
    "aio": "sync",
    "async_call": "sync_call",
    "async_caller": "sync_caller",
    "async_driver": "sync_driver",
    "async_producer": "sync_producer",
    "async_transform": "sync_transform",
    "async_wake_call": "sync_wake_call",
    "async_workers": "sync_workers",
}
# Without `async`, comprehensions and loops remain that ruff replaces: UP028 and C416.
FIXES = "I,UP028,C416"

_DOCSTRING = re.compile(r'"""(?:.|\n)*?"""')


def generate(name: str) -> str:
    """Return the text of one module of semel.client.sync."""
    with tempfile.TemporaryDirectory() as root:
        source, target = Path(root, "aio", f"{name}.py"), Path(root, "sync", f"{name}.py")
        source.parent.mkdir()
        source.write_text((ASYNC / f"{name}.py").read_text())
        unasync.unasync_files([str(source)], [unasync.Rule("/aio/", "/sync/", NAMES)])
        text = target.read_text()
    text = HEADER.format(name=name) + _DOCSTRING.sub(lambda found: sync_words(found[0]), text)
    path = str(SYNC / f"{name}.py")
    text = _ruff(text, "check", "--fix", "--unsafe-fixes", "--select", FIXES, path=path)
    return _ruff(text, "format", path=path)


def sync_words(docstring: str) -> str:
    """Remove `await` and `async` from the code in a docstring."""
    return docstring.replace("`await ", "`").replace("`async ", "`")


def _ruff(text: str, *command: str, path: str) -> str:
    arguments = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", path, "-"]
    return subprocess.run(arguments, input=text, capture_output=True, check=True, text=True).stdout


def main() -> None:
    for name in MODULES:
        (SYNC / f"{name}.py").write_text(generate(name))


if __name__ == "__main__":
    main()
