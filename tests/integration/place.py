"""A server and unused names, for the tests of graphs. The fixture `place` is in `conftest.py`."""

from typing import Any

from semel.client.local import LocalServer
from semel.pipeline import Graph


class Place:
    """A server, and names that no other test uses."""

    def __init__(self, server: LocalServer, number: int) -> None:
        self.server = server
        self.url = server.url
        self.id = f"g{number}"

    def graph(self, **options: Any) -> Graph:
        return Graph(self.id, url=self.url, **options)

    def path(self, name: str) -> str:
        return f"{self.id}-{name}"

    def fill(self, name: str, *values: Any) -> str:
        stream = self.server.stream(self.path(name)).create("application/json", exist_ok=True)
        if values:
            stream.append_many(values)
        return stream.path

    def read(self, name: str) -> list[Any]:
        return [message.value for message in self.server.stream(self.path(name)).read()]

    def offsets(self, processor: str) -> dict[str, int]:
        found = self.server.group(f"{self.id}/{processor}").offsets()
        return {path: int(offset.rpartition("_")[2]) for path, offset in found.items()}
