"""What an append or a creation asks for, and the headers that say so."""

from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from semel.client.addresses import stream_reference
from semel.client.extras import milliseconds
from semel.client.outgoing import Fields
from semel.wire.headers import print_instant


class Tag(Struct, frozen=True):
    """A producer's number for one append, under an epoch or a session of its own."""

    producer_id: str
    seq: int
    epoch: int | None = None
    session: str | None = None


class Branch(Struct, frozen=True):
    """The transaction an append is part of; `seq` is its number there, if it is staged."""

    transaction_id: str
    epoch: int
    seq: int | None = None


class Conditions(Struct, frozen=True):
    """What an append asks for beside its messages."""

    seq: str | None = None
    if_match: str | None = None
    idempotency_key: str | None = None
    is_closing: bool = False
    tag: Tag | None = None
    branch: Branch | None = None

    @property
    def headers(self) -> Fields:
        """The headers that say so."""
        tag, branch = self.tag, self.branch
        found = {
            "Producer-Id": None if tag is None else tag.producer_id,
            "Producer-Seq": None if tag is None else str(tag.seq),
            "Producer-Epoch": None if tag is None or tag.epoch is None else str(tag.epoch),
            "Producer-Session": None if tag is None else tag.session,
            "Transaction-Id": None if branch is None else branch.transaction_id,
            "Transaction-Epoch": None if branch is None else str(branch.epoch),
            "Transaction-Seq": None if branch is None or branch.seq is None else str(branch.seq),
            "Stream-Seq": self.seq,
            "If-Match": None if self.if_match is None else f'"{self.if_match}"',
            "Idempotency-Key": self.idempotency_key,
            "Stream-Closed": "true" if self.is_closing else None,
        }
        return tuple((name, value) for name, value in found.items() if value is not None)

    @property
    def is_tagged(self) -> bool:
        """Whether a second try is recognised, and answered as the first one was."""
        return (self.idempotency_key, self.tag, self.branch) != (None, None, None)

    @property
    def is_numbered(self) -> bool:
        """Whether the batch has its number, a producer's or a transaction's."""
        return self.tag is not None or self.branch is not None

    @property
    def is_staged(self) -> bool:
        """Whether the messages get their offsets later, with the commit."""
        return self.branch is not None and self.branch.seq is not None

    @property
    def is_guarded(self) -> bool:
        """Whether a second try cannot be applied twice, and cannot tell if the first one was."""
        return not self.is_tagged and (self.if_match is not None or self.seq is not None)


CLOSING: Final = Conditions(is_closing=True)


class Configuration(Struct, frozen=True):
    """What a stream is created with."""

    content_type: str | None = None
    ttl: int | timedelta | None = None
    expires_at: datetime | None = None
    is_closed: bool = False
    forked_from: str | None = None
    fork_offset: str | None = None
    fork_sub_offset: int | None = None
    dedup: bool | None = None

    @property
    def headers(self) -> Fields:
        """The headers that say so; ValueError if they cannot."""
        found = {
            "Content-Type": self.content_type,
            "Stream-TTL": None if self.ttl is None else _print_ttl(self.ttl),
            "Stream-Expires-At": None
            if self.expires_at is None
            else print_instant(milliseconds(self.expires_at)),
            "Stream-Closed": "true" if self.is_closed else None,
            "Stream-Forked-From": (
                None if self.forked_from is None else stream_reference(self.forked_from)
            ),
            "Stream-Fork-Offset": self.fork_offset,
            "Stream-Fork-Sub-Offset": (
                None if self.fork_sub_offset is None else str(self.fork_sub_offset)
            ),
            "Stream-Dedup": None if self.dedup is None else ("off", "on")[self.dedup],
        }
        return tuple((name, value) for name, value in found.items() if value is not None)


def _print_ttl(ttl: int | timedelta) -> str:
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if seconds != int(seconds) or seconds < 0:
        raise ValueError(f"ttl is in whole seconds, not {seconds}")
    return str(int(seconds))
