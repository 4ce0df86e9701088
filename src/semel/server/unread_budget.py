"""The memory of responses that clients have not read yet, for all connections and per address.

`UnreadBudget` is the memory that a listener grants. Each connection has an `UnreadAccount`, which
counts its unread bytes. All connections from one address share an `AddressUse`.

Long and short responses are counted separately. The response to a short read is short; every other
response is long. A part of the budget is kept for short responses, so that clients who do not read
long responses cannot use it up.
"""

import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct, field

from semel.server.limits_http import HttpLimits

if TYPE_CHECKING:
    from semel.server.admission import AdmittedRead

_SHORT_SHARE: Final = 8  # an eighth of the budget is kept for short responses
_NETWORK_BYTES: Final = 8  # one client often has all addresses of an IPv6 network with 64 bits


def client_address(peer: Any) -> str:
    """Return the address of a connection's client, given the `peername` of the connection.

    Clients in the same IPv6 /64 network have the same address here. Without a peer name, as on a
    connection that is already closed, return an empty string.
    """
    if not isinstance(peer, tuple) or not peer:
        return ""
    host = str(peer[0]).partition("%")[0]
    if ":" not in host:
        return host
    return socket.inet_pton(socket.AF_INET6, host)[:_NETWORK_BYTES].hex(":", 2) + "::/64"


class ConnectionCounts(Struct):
    """Figures about connections and reads for `/metrics`. Totals count from the start."""

    connections: int = 0
    handshakes: int = 0  # TLS handshakes under way
    handshakes_dropped: int = 0  # total; dropped because too many were under way
    stalled_closed: int = 0  # total of connections closed because the client did not read
    reads_waiting: int = 0
    reads_refused: int = 0  # total


class AddressUse(Struct, eq=False):
    """The use of a budget by the connections from one address.

    `bytes` is the size of their unread long responses. `waiting` has their reads that wait for
    admission, oldest first. `is_refused` means that a list was refused since the last sweep.
    """

    bytes_max: float
    bytes: int = 0
    connections: int = 0
    is_refused: bool = False
    waiting: "deque[AdmittedRead]" = field(default_factory=deque)

    @property
    def is_full(self) -> bool:
        """True if long reads from this address have to wait."""
        return self.bytes >= self.bytes_max

    @property
    def is_wanted(self) -> bool:
        """True if a read of this address waits for memory, or a list was refused."""
        return self.is_refused or bool(self.waiting)


class UnreadHolder(Protocol):
    """The part of a connection that UnreadBudget uses."""

    @property
    def account(self) -> "UnreadAccount":
        """The connection's account."""

    def is_stuck(self, now: float) -> bool:
        """Return True if the client has read too little for `crowded_stall_seconds`."""

    def reset(self) -> None:
        """Close the connection immediately, and drop what the kernel has not sent yet."""


class UnreadBudget:
    """The memory that unread responses can use, for all connections of a listener together."""

    def __init__(self, limits: HttpLimits | None = None) -> None:
        limits = limits or HttpLimits()
        self.limits: Final = limits
        self.counts: Final = ConnectionCounts()
        self.bytes = 0  # unread bytes of long responses in the buffers of connections
        self.short_bytes = 0  # the same, of short responses
        self.reserved_bytes = 0  # for long responses that are not written yet
        self.on_release: Callable[[], None] | None = None
        self.server_use: Final = AddressUse(float("inf"))  # for reads that the server itself needs
        self._short_bytes_max = limits.unread_bytes_max // _SHORT_SHARE
        self._long_bytes_max = limits.unread_bytes_max - self._short_bytes_max
        self._addresses: dict[str, AddressUse] = {}
        self._refused: list[AddressUse] = []  # those with `is_refused`

    # ---- accounts ------------------------------------------------------------------------------

    def open(self, address: str) -> "UnreadAccount":
        """Return the account of a new connection from `address`."""
        use = self._addresses.get(address)
        if use is None:
            use = AddressUse(self.limits.unread_bytes_per_address_max)
            self._addresses[address] = use
        use.connections += 1
        return UnreadAccount(self, address, use)

    def close(self, account: "UnreadAccount") -> None:
        """Remove the account of a connection that has ended."""
        account.clear()
        account.use.connections -= 1
        if not account.use.connections:
            self._addresses.pop(account.address, None)

    # ---- the use of memory ---------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """True if the budget for long responses is used up, so that long reads have to wait."""
        return self.bytes + self.reserved_bytes >= self._long_bytes_max

    @property
    def is_full_for_short(self) -> bool:
        """True if the budget for short responses is used up, so that short reads have to wait."""
        return self.short_bytes >= self._short_bytes_max

    def reserve(self, count: int) -> None:
        """Reserve bytes for a response that is not written yet."""
        self.reserved_bytes += count

    def release(self, count: int) -> None:
        """Release reserved bytes, because the read or the compression has ended."""
        self.reserved_bytes -= count
        self.released()

    def released(self) -> None:
        """Start waiting reads, because memory was released."""
        if self.counts.reads_waiting and self.on_release is not None:
            self.on_release()

    def refuse(self, use: AddressUse) -> None:
        """Count a request that is refused because there is no memory for its response."""
        self.counts.reads_refused += 1
        if not use.is_refused:
            use.is_refused = True
            self._refused.append(use)

    def close_stuck(self, holders: Iterable[UnreadHolder], now: float) -> None:
        """If others need memory, close all connections that hold it and are stuck.

        Others need it if reads wait for it, or if lists were refused since the last call.
        """
        if not self.counts.reads_waiting and not self._refused:
            return
        needed = [holder for holder in holders if self._is_needed(holder.account)]
        for holder in needed:
            if holder.is_stuck(now):
                self.counts.stalled_closed += 1
                holder.reset()
        for use in self._refused:
            use.is_refused = False
        self._refused.clear()

    def _is_needed(self, account: "UnreadAccount") -> bool:
        """Return True if others need the memory that `account` counts."""
        if not account.bytes:
            return False
        if account.is_counted_as_short:
            return self.is_full_for_short
        return self.is_full or (account.use.is_full and account.use.is_wanted)


class UnreadAccount:
    """The unread bytes of one connection."""

    __slots__ = ("_budget", "address", "bytes", "is_counted_as_short", "is_short", "use")

    def __init__(self, budget: UnreadBudget, address: str, use: AddressUse) -> None:
        self._budget = budget
        self.address: Final = address
        self.use: Final = use
        self.bytes = 0
        self.is_short = False  # the response that is written now is short
        self.is_counted_as_short = False  # `bytes` are counted as short

    def add(self, count: int) -> None:
        """Add bytes that were written to the connection and that its client has not read yet."""
        if not self.bytes:
            self.is_counted_as_short = self.is_short
        elif self.is_counted_as_short and not self.is_short:
            self._move_to_long()
        self.bytes += count
        self._count(count)

    @property
    def is_full(self) -> bool:
        """True if there is no memory for a long response to this connection."""
        return self._budget.is_full or self.use.is_full

    def refuse(self) -> None:
        """Count a request that is refused because there is no memory for its response."""
        self._budget.refuse(self.use)

    def _move_to_long(self) -> None:
        self._count(-self.bytes)
        self.is_counted_as_short = False
        self._count(self.bytes)

    def clear(self) -> None:
        """Remove all bytes, because the client has read them or the connection is closed."""
        count, self.bytes = self.bytes, 0
        if count:
            self._count(-count)
            self._budget.released()

    def _count(self, count: int) -> None:
        if self.is_counted_as_short:
            self._budget.short_bytes += count
        else:
            self._budget.bytes += count
            self.use.bytes += count
