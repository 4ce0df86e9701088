"""A raw HTTP connection without retries: a response is complete, or an error is raised."""

import re
import socket
from typing import Final, NamedTuple
from urllib.parse import urlsplit

_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_SILENCE_SECONDS: Final = 1.0


class Broken(Exception):
    """The connection was closed before the response was complete."""


class Response(NamedTuple):
    """A response; the names of its fields are in lower case."""

    status: int
    fields: dict[str, str]
    body: bytes


class Line:
    """A client with one connection at a time, opened when it is needed."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = (str(parts.hostname), int(parts.port or 0))
        self._socket: socket.socket | None = None

    def post(self, target: str, content_type: str, fields: dict[str, str], body: bytes) -> Response:
        """Send a request, and return the response."""
        all_fields = {
            "Host": "localhost",
            "Content-Type": content_type,
            "Content-Length": str(len(body)),
            **fields,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in all_fields.items())
        if self._socket is None:
            self._socket = socket.create_connection(self._address, _SILENCE_SECONDS)
        self._socket.sendall(f"POST {target} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        return self._read(self._socket)

    def _read(self, line: socket.socket) -> Response:
        data = b""
        while (end := data.find(_HEAD_END)) < 0:
            data += _more(line)
        length = _LENGTH.search(data, 0, end + 2)
        whole = end + len(_HEAD_END) + (int(length[1]) if length else 0)
        while len(data) < whole:
            data += _more(line)
        first, *rest = data[:end].decode("latin-1").split("\r\n")
        pairs = (field.partition(":") for field in rest)
        fields = {name.lower(): value.strip() for name, _, value in pairs}
        return Response(int(first[9:12]), fields, data[end + len(_HEAD_END) : whole])

    def close(self) -> None:
        """Close the connection; the next `post` opens a new one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _more(line: socket.socket) -> bytes:
    data = line.recv(65_536)
    if not data:
        raise Broken
    return data
