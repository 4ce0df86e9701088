"""Writing to a TLS connection in parts, so that its unread bytes are known."""

import asyncio
from collections import deque
from typing import Any, Final

from semel.model.limits import KIB

_PART_BYTES: Final = 32 * KIB  # more than the write buffer of a connection, so one part can fill it


class TlsTransport(asyncio.Transport):
    """A TLS transport that gets at most one part more than its client reads.

    The transport of the event loop encrypts everything at once, and passes it to the transport of
    the socket, whose buffer it does not count: after a write of 4 MiB the size of its own buffer is
    0, and `pause_writing` is not called. So it would not be noticed that a client does not read.
    This class keeps the bytes and writes one part after the other until `pause_writing` is called.

    The protocol must call `pause` and `resume` when the transport of the event loop calls its
    methods `pause_writing` and `resume_writing`.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._rest: deque[memoryview] = deque()
        self._rest_bytes = 0
        self._is_paused = False
        self._closes = False  # when the rest is written

    def pause(self) -> None:
        """Write nothing more until `resume` is called."""
        self._is_paused = True

    def resume(self) -> bool:
        """Continue to write. Return False if the client still does not read enough."""
        self._is_paused = False
        self._write_rest()
        return not self._is_paused

    def _write_rest(self) -> None:
        while self._rest and not self._is_paused:
            data = self._rest.popleft()
            part = data[:_PART_BYTES]
            if len(part) < len(data):
                self._rest.appendleft(data[_PART_BYTES:])
            self._rest_bytes -= len(part)
            self._transport.write(part)
        if self._closes and not self._rest:
            self._transport.close()

    # ---- the methods of a transport ------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._rest.append(memoryview(data))
        self._rest_bytes += len(data)
        self._write_rest()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self._rest_bytes + self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def close(self) -> None:
        """Close the connection as soon as everything is written."""
        self._closes = True
        self._write_rest()

    def abort(self) -> None:
        self._rest.clear()
        self._rest_bytes = 0
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def can_write_eof(self) -> bool:
        """Return False: TLS cannot close only one side."""
        return False

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)
