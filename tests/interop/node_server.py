"""Runs the reference server of the protocol, on node, for tests of our client."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from semel_bench.servers import node_server


@contextmanager
def reference_server(directory: Path, packages: Path) -> Iterator[str]:
    """Run the server on a directory; yield the base URL of its streams."""
    with node_server(str(directory), str(packages / "node_modules")) as process:
        yield f"http://127.0.0.1:{process.port}"
