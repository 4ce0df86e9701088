"""`semel audit`: prints the records of the audit."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

import click
import msgspec

from semel.broker.guard import AUDIT, AuditRecord
from semel.broker.settings import SystemClock
from semel.cli.options import Name, Number, SpanOrMoment, remote
from semel.cli.output import EXIT_REFUSED, CommandRefused, json_line, printable, write_stdout
from semel.cli.streams import live_pages, read_pages, report_first_retry
from semel.client.errors import StreamNotFound
from semel.client.extras import milliseconds
from semel.client.sync.client import Client
from semel.client.token_calls import who_am_i
from semel.client.values import START, Message
from semel.wire.headers import print_instant

# The widths of the columns on a terminal: time, who, action, target, right, outcome, count.
_WIDTHS: Final = (24, 16, 14, 36, 8, 15, 5)
_ABSENT: Final = "-"
_decode: Final = msgspec.json.Decoder(AuditRecord).decode
# Returns True for a record that is printed.
_Filter = Callable[[AuditRecord], bool]


@click.command("audit")
@click.option("--follow", "is_live", is_flag=True, help="Also print new records as they arrive.")
@click.option(
    "--since",
    type=SpanOrMoment(),
    metavar="TIME",
    help="Print only records from the last 1h or 7d, or since 2030-01-31T12:00:00Z.",
)
@click.option("--principal", type=Name(), help="Print only records about this principal.")
@click.option("--action", type=Name(), help="Print only records of this action, such as refused.")
@click.option("--limit", type=Number(1), help="Print at most this many records: the newest ones.")
@remote
def audit_command(
    client: Client,
    *,
    is_live: bool,
    since: datetime | timedelta | None,
    principal: str | None,
    action: str | None,
    limit: int | None,
    is_json: bool,
) -> None:
    """Print the audit: who changed tokens, owners and policies, and what was refused.

    Prints one record per line, oldest first: the time, the principal (or the address of the
    client), the action, its target, the right that was missing, the outcome, how many equal
    refusals the record counts, and a detail. Needs a token with admin on the cluster.
    """
    since_ms = _start_ms(since)

    def is_printed(record: AuditRecord) -> bool:
        return (
            record.time_ms >= since_ms
            and principal in (None, record.principal)
            and action in (None, record.action)
        )

    try:
        offset = _print_stored(client, is_printed, limit, is_json=is_json)
        if is_live:
            for page in live_pages(client, AUDIT, offset, report_first_retry):
                _print(_matching(page, is_printed), is_json=is_json)
    except StreamNotFound as error:
        raise _not_shown(client) from error


def _start_ms(since: datetime | timedelta | None) -> int:
    if since is None:
        return 0
    if isinstance(since, timedelta):
        return SystemClock().now_ms() - since // timedelta(milliseconds=1)
    return milliseconds(since)


def _print_stored(client: Client, is_printed: _Filter, limit: int | None, *, is_json: bool) -> str:
    """Print the records that are stored now. Return the offset after the last one."""
    newest: deque[AuditRecord] = deque(maxlen=limit)
    offset = START
    for page in read_pages(client, AUDIT, START):
        if page:
            offset = page[-1].next_offset or offset
        records = _matching(page, is_printed)
        if limit is None:
            _print(records, is_json=is_json)
        else:
            newest.extend(records)
    _print(newest, is_json=is_json)
    return offset


def _matching(page: list[Message], is_printed: _Filter) -> Iterator[AuditRecord]:
    return filter(is_printed, (_decode(message.raw) for message in page))


def _print(records: Iterable[AuditRecord], *, is_json: bool) -> None:
    if is_json:
        lines = [json_line(each) for each in records]
    else:
        lines = [_line(each, is_table=sys.stdout.isatty()) for each in records]
    if lines:
        write_stdout(b"".join(lines))


def _line(record: AuditRecord, *, is_table: bool) -> bytes:
    cells = (
        print_instant(record.time_ms),
        record.principal or record.address,
        record.action,
        record.target or record.route,
        record.right,
        record.outcome,
        str(record.count),
        record.detail,
    )
    shown = [printable(cell) or _ABSENT for cell in cells]
    if is_table:
        padded = [cell.ljust(width) for cell, width in zip(shown, _WIDTHS, strict=False)]
        return (" ".join([*padded, shown[-1]]).rstrip() + "\n").encode()
    return ("\t".join(shown) + "\n").encode()


def _not_shown(client: Client) -> CommandRefused:
    """Return the error for an audit that is not there, or that the caller may not read."""
    caller = client.run(who_am_i(client.site))
    if caller.access == "off":
        message = "access is off on this server, so that nothing is audited"
    else:
        message = (
            f"the token of {caller.principal} may not read the audit; use a token with admin on the"
            " cluster"
        )
    return CommandRefused(message, EXIT_REFUSED)
