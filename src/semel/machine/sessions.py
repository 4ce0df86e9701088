"""The sessions a producer had before its present one."""

from semel.machine.rows import ProducerRow
from semel.model.limits import SESSIONS_REMEMBERED


def older_sessions(old: ProducerRow, session: str | None) -> tuple[str, ...]:
    """Put the present session to the older ones; `session` takes its place."""
    older = tuple(known for known in old.older if known != session)
    if old.session is not None:
        older = (*older, old.session)
    return older[-SESSIONS_REMEMBERED:]
