"""The limits on one HTTP connection, and on all connections (see `docs/reference/limits.md`)."""

import resource
from math import inf
from typing import Final

from msgspec import Struct

from semel.model.limits import BODY_BYTES_MAX, DELIVERIES_MAX, KIB, MIB
from semel.server.phases import ConnectionPhase

_FILE_SHARE: Final = 0.8
_DELIVERIES_MIN: Final = 4
_OWN_FILES: Final = 64  # for the journal, its reader, the checkpoint and the event loop


class HttpLimits(Struct, frozen=True, kw_only=True):
    """The limits on HTTP requests, responses and connections. Every limit must be positive."""

    # Request heads: the response is 414 if the URL is too long, otherwise 431.
    url_bytes_max: int = 8 * KIB
    header_line_bytes_max: int = 8 * KIB
    header_count_max: int = 100
    head_bytes_max: int = 32 * KIB

    # Request bodies: the response is 413 if the body is too large.
    body_bytes_max: int = BODY_BYTES_MAX
    chunk_count_max: int = 65_536
    chunk_line_bytes_max: int = 1 * KIB
    trailer_bytes_max: int = 8 * KIB

    # Timeouts: a slow request gets 408; in all other cases the connection is closed.
    header_seconds: float = 10.0
    body_seconds: float = 60.0
    body_bytes_per_second_min: int = 1 * KIB
    body_grace_seconds: float = 5.0  # the rate is not checked before this time
    keep_alive_seconds: float = 30.0
    stall_seconds: float = 30.0  # how long the client can read nothing of a response
    # While reads wait for memory, a client that has not finished reading a long response must read
    # at this rate, on average over this time.
    crowded_stall_seconds: float = 5.0
    crowded_bytes_per_second_min: int = 64 * KIB
    read_wait_seconds: float = 10.0  # how long a read waits for memory; then the response is 503
    half_closed_seconds: float = 5.0  # to send responses after the client has closed its side
    linger_seconds: float = 2.0  # after the last response, until the client closes its side

    # Memory of one connection, and of all connections. Above a limit, the server stops reading from
    # the connection, or the response is 503.
    connections_max: int = 16_384
    pipelined_max: int = 64
    pipelined_bytes_max: int = 8 * MIB
    held_bytes_max: int = 512 * MIB
    write_buffer_bytes: int = 16 * KIB  # of one connection; above it, nothing more is encoded
    unread_bytes_max: int = 256 * MIB  # of all connections; above it, new long reads wait
    unread_bytes_per_address_max: int = 128 * MIB  # the same, of the connections from one address
    waiting_reads_per_address_max: int = 1_024

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not 0 < getattr(self, name) < inf:
                raise ValueError(f"{name} must be positive")

    def seconds_in(self, phase: ConnectionPhase) -> float:
        """Return how many seconds a connection is allowed to stay in a phase.

        The result is infinite for phases in which the connection waits for the server. It is also
        infinite while a body is received, because `PartialBody.is_late` checks that deadline.
        """
        seconds = {
            ConnectionPhase.FRESH: self.header_seconds,
            ConnectionPhase.IDLE: self.keep_alive_seconds,
            ConnectionPhase.HEAD: self.header_seconds,
            ConnectionPhase.HALF_CLOSED: self.half_closed_seconds,
            ConnectionPhase.LINGERING: self.linger_seconds,
        }
        return seconds.get(phase, inf)

    @property
    def sweep_seconds(self) -> float:
        """The time between deadline checks: a quarter of the shortest timeout, at most 1 second."""
        shortest = min(
            self.header_seconds,
            self.body_seconds,
            self.body_grace_seconds,
            self.keep_alive_seconds,
            self.stall_seconds,
            self.crowded_stall_seconds,
            self.read_wait_seconds,
            self.half_closed_seconds,
            self.linger_seconds,
        )
        return min(1.0, shortest / 4)


def connections_allowed(limits: HttpLimits) -> int:
    """Return `connections_max`, or a lower number if the process cannot open enough files.

    Some files are kept free for the journal and for refused connections.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits.connections_max
    return max(1, min(limits.connections_max, int(files * _FILE_SHARE), files - _OWN_FILES))


def deliveries_allowed(limits: HttpLimits) -> int:
    """Return how many deliveries of webhooks can be made at the same time.

    It is DELIVERIES_MAX, or a lower number if connections and the journal leave fewer files.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return DELIVERIES_MAX
    spare = files - connections_allowed(limits) - _OWN_FILES
    return max(_DELIVERIES_MIN, min(DELIVERIES_MAX, spare))


def raise_file_limit(limits: HttpLimits) -> None:
    """Increase the soft limit on open files to fit `connections_max`, up to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = int(limits.connections_max / _FILE_SHARE) + _OWN_FILES
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
