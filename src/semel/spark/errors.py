"""What a reader says when it cannot go on; each with its cure."""

from typing import Final

from semel.client.errors import ClientError

# A server that was never reached is more likely misspelt than restarting.
FIRST_SECONDS: Final = 10.0
_GO_ON: Final = 'to go on without them, set .option("failOnDataLoss", "false")'


class DataLossError(RuntimeError):
    """Messages the query has not read yet are no longer there."""


class StreamMissing(LookupError):
    """There is no such stream; the message names those that are called nearly so."""


class ServerUnreachable(ConnectionError):
    """The server cannot be reached; the message says where it was looked for."""


def server_unreachable(error: ClientError) -> ServerUnreachable:
    """The server did not answer for as long as it was waited for."""
    return ServerUnreachable(
        f"{error.message}: start the server (`semel serve`) or correct the option url;"
        " retryTimeout says how long to wait for it"
    )


def not_a_semel_server(url: str, error: ClientError | None = None) -> ServerUnreachable:
    """Something else than semel listens there."""
    said = f" ({error.message})" if error is not None else ""
    return ServerUnreachable(f"{url} is no semel server{said}: correct the option url")


def stream_trimmed(stream: str, begin: int, head: int) -> DataLossError:
    """Messages were given up by a trim before they were read."""
    return DataLossError(
        f"{stream} begins at offset {head} now, and offsets {begin} to {head - 1} were not read"
        f" yet: they were trimmed; {_GO_ON}"
    )


def stream_recreated(stream: str) -> DataLossError:
    """The path holds another stream now."""
    return DataLossError(
        f"{stream} was deleted and made anew since the query read it: what was not read is lost."
        " Start with a new checkpointLocation to read the new one from its beginning;"
        f" {_GO_ON}"
    )


def stream_deleted(stream: str) -> DataLossError:
    """The stream is gone."""
    return DataLossError(
        f"{stream} was deleted while the query read it: create it again and start with a new"
        f" checkpointLocation, or remove it from the query; {_GO_ON}"
    )


def stream_truncated(stream: str, position: int, tail: int) -> DataLossError:
    """The stream ends before what was read already: its data is not what it was."""
    return DataLossError(
        f"{stream} ends at offset {tail}, but the query has read up to {position}: the server lost"
        " data, or a backup was restored. Start with a new checkpointLocation;"
        f" {_GO_ON}"
    )
