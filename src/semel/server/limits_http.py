"""What one HTTP connection may ask of the process. Reaching a limit is an answer, never a guess."""

import resource
from math import inf
from typing import Final

from msgspec import Struct

from semel.model.limits import BODY_BYTES_MAX, KIB, MIB

_FILE_SHARE: Final = 0.8
_OWN_FILES: Final = 64  # of the journal, its reader, the checkpoint and the loop


class HttpLimits(Struct, frozen=True, kw_only=True):
    """Sizes in bytes, times in seconds."""

    # The head of a request: 414 for its target, 431 for the rest.
    url_bytes_max: int = 8 * KIB
    header_line_bytes_max: int = 8 * KIB
    header_count_max: int = 100
    head_bytes_max: int = 32 * KIB

    # Its body: 413.
    body_bytes_max: int = BODY_BYTES_MAX
    chunk_count_max: int = 65_536
    chunk_line_bytes_max: int = 1 * KIB
    trailer_bytes_max: int = 8 * KIB

    # How long a client may take: 408, or a closed connection.
    header_seconds: float = 10.0
    body_seconds: float = 60.0
    body_bytes_per_second_min: int = 1 * KIB
    body_grace_seconds: float = 5.0  # before the rate is looked at
    keep_alive_seconds: float = 30.0
    stall_seconds: float = 30.0  # an answer of which nothing is read
    crowded_stall_seconds: float = 2.0  # the same, while others wait for the room it takes
    half_closed_seconds: float = 5.0  # answers still owed to a client that said its last word
    linger_seconds: float = 2.0  # between our last word and the end, so that it is not lost

    # What a connection, and all of them, may make us hold: reading pauses, or 503.
    connections_max: int = 16_384
    pipelined_max: int = 64
    pipelined_bytes_max: int = 8 * MIB
    held_bytes_max: int = 512 * MIB
    write_buffer_bytes: int = 16 * KIB  # of one connection; beyond it nothing more is made for it
    unread_bytes_max: int = 256 * MIB  # long answers, of all connections; further reads wait

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not 0 < getattr(self, name) < inf:
                raise ValueError(f"{name} must be positive")

    @property
    def sweep_seconds(self) -> float:
        """How often deadlines are looked at: often enough that none is missed by much."""
        shortest = min(
            self.header_seconds,
            self.body_seconds,
            self.body_grace_seconds,
            self.keep_alive_seconds,
            self.stall_seconds,
            self.crowded_stall_seconds,
            self.half_closed_seconds,
            self.linger_seconds,
        )
        return min(1.0, shortest / 4)


def connection_room(limits: HttpLimits) -> int:
    """How many connections fit: the rest of the files belongs to the journal and to refusals."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits.connections_max
    return max(1, min(limits.connections_max, int(files * _FILE_SHARE), files - _OWN_FILES))


def raise_file_limit(limits: HttpLimits) -> None:
    """Take as many files as the system allows, and as there may be use for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = int(limits.connections_max / _FILE_SHARE) + _OWN_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
