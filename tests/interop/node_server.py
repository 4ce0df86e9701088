"""The protocol's reference server, on node, for our client to talk to."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from semel_bench.servers import node_server


@contextmanager
def reference_server(directory: Path, packages: Path) -> Iterator[str]:
    """Run it on a directory; its address, below which paths are streams."""
    with node_server(str(directory), str(packages / "node_modules")) as process:
        yield f"http://127.0.0.1:{process.port}"
