"""The server a command asks, and what it says in the words of the command line."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from semel.cli.exits import EXIT_NOT_UNDERSTOOD, EXIT_REFUSED, EXIT_UNAVAILABLE, Refused
from semel.client import errors
from semel.client.client import Client
from semel.client.errors import ClientError

# A person waits: a server that is not there is said so within a second.
_RETRIES: Final = 4

_NOT_REACHED: Final = (
    "start one with `semel serve`, or say with --url where it is and with --timeout how long to"
    " wait for it"
)
_IN_DOUBT: Final = (
    "it may have been done or not: look first; an append with --producer, --epoch and --seq or"
    " with --idempotency-key may simply be sent again"
)

# What to do next, where the message does not say it.
_ADVICE: Final[Mapping[str, str]] = {
    "stream_not_found": "`semel ls` shows what there is, `semel create` makes one",
    "stream_gone": "its path is free again once its forks are deleted",
    "stream_closed": "it takes no more appends; create another one",
    "config_conflict": "`semel head` shows what it has; use that, or another path",
    "content_type_conflict": "leave --content-type away to send the stream's own",
    "precondition_failed": "read what was appended in between, then decide anew",
    "OFFSET_BEYOND_TAIL": "`semel head` shows where it ends",
    "offset_trimmed": "start at its head, or with --offset -1",
    "PRODUCER_FENCED": "stop this instance, or raise --epoch and begin with --seq 0",
    "UNKNOWN_PRODUCER_ID": "`semel producers ls` shows who writes; `register` gives out ids",
    "producer_seq_conflict": "send again from the sequence that is missing",
    "epoch_must_start_at_zero": "begin with --seq 0",
    "idempotency_key_reused": "use a fresh --idempotency-key for each message",
    "INVALID_TXN_ID": "`semel txn ls` shows those that are not decided",
    "unknown_sink": "`semel sinks ls` shows what there is",
    "disk_full": "free some space and send the same again",
}


@contextmanager
def asking(url: str, timeout: float) -> Iterator[Client]:
    """Give a command its server; what the server refuses ends the command."""
    try:
        client = Client(url, timeout=timeout, retries=_RETRIES)
    except ValueError as error:
        raise Refused(f"--url: {error}; wanted is one such as http://127.0.0.1:4437") from error
    with client:
        try:
            yield client
        except ClientError as error:
            raise complaint(error) from error


def complaint(error: ClientError) -> Refused:
    """Say what went wrong, and what to do."""
    if isinstance(error, errors.NotSupported | errors.ProtocolError):
        return Refused(f"{error.message}; is this semel? check --url", EXIT_NOT_UNDERSTOOD)
    if isinstance(error, errors.Refused):
        return Refused(_refusal(error), EXIT_REFUSED)
    if isinstance(error, errors.Indeterminate):
        return Refused(f"{error.message}; {_IN_DOUBT}", EXIT_UNAVAILABLE)
    if isinstance(error, errors.Unavailable) and error.status is not None:
        return Refused(f"{error.message}; send the same again, later", EXIT_UNAVAILABLE)
    is_said = "SSL_CERT_FILE" in error.message
    return Refused(
        error.message if is_said else f"{error.message}; {_NOT_REACHED}", EXIT_UNAVAILABLE
    )


def _refusal(error: errors.Refused) -> str:
    said = error.message.removeprefix(f"{error.status} {error.code}: ")
    listed = ", ".join(
        f"{name} {value}"
        for name, value in error.facts.items()
        if value is not None and not (isinstance(value, str) and value in said)
    )
    text = f"{error.code}: {said}" + (f" ({listed})" if listed else "")
    if error.applied != errors.NO:
        text += "; it may have been applied"
    # What the client found out by itself has no status, and says all there is.
    advice = _ADVICE.get(error.code) if error.status else None
    return f"{text}; {advice}" if advice else text
