"""What `semel append` was asked for."""

from msgspec import Struct


class Appending(Struct, frozen=True, kw_only=True):
    """The arguments and options, as they were given."""

    data: str | None = None
    file: str | None = None
    lines: bool = False
    content_type: str | None = None
    key: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    producer: str | None = None
    epoch: int | None = None
    seq: int | None = None
    idempotency_key: str | None = None
    close: bool = False
    if_match: str | None = None
