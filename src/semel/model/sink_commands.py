"""Commands on sinks. A sink commits its versions by one-shot commits."""

from msgspec import Struct

from semel.model.limits import NUMBER_MAX, TXN_ID_BYTES_MAX
from semel.model.names import is_name


class RebindSink(Struct, frozen=True, gc=False):
    """Bind a sink to a query. The sink's next version is `last_version` + 1."""

    now_ms: int
    app: str
    query_id: str
    last_version: int


class ForgetSink(Struct, frozen=True, gc=False):
    """Drop the stored row of a sink."""

    now_ms: int
    app: str


SinkCommand = RebindSink | ForgetSink


def invalid_sink_field(command: SinkCommand) -> str | None:
    """Return the first invalid field of a command on a sink, or None.

    The last version can be -1. Then the next version is 0.
    """
    is_valid = is_name(command.app, TXN_ID_BYTES_MAX)
    if isinstance(command, RebindSink):
        is_valid = is_valid and is_name(command.query_id, TXN_ID_BYTES_MAX)
        is_valid = is_valid and -1 <= command.last_version < NUMBER_MAX
    return None if is_valid else "sink"
