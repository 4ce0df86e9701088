"""ETags: one for each thing a read can return, so that equal tags mean equal answers."""

import re
from typing import Final

_TAG: Final = re.compile(r'[ \t,]*(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")[ \t]*(?:,|$)')


def etag_of(
    incarnation: str,
    start: int,
    end: int,
    *,
    is_up_to_date: bool = False,
    is_closed: bool = False,
    is_committed: bool = False,
    is_frames: bool = False,
    is_gzip: bool = False,
) -> str:
    """Name the messages from `start` up to `end`, how the stream stood and how they are packed."""
    marks = (
        (is_up_to_date, "u"),
        (is_closed, "c"),
        (is_committed, "r"),
        (is_frames, "f"),
        (is_gzip, "z"),
    )
    return f'"{incarnation}:{start}:{end}:{"".join(mark for is_set, mark in marks if is_set)}"'


def is_match(etag: str, if_none_match: str) -> bool:
    """Compare weakly with `*` or a list of tags; a broken list matches up to where it breaks."""
    if if_none_match.strip() == "*":
        return True
    at = 0
    while at < len(if_none_match):
        found = _TAG.match(if_none_match, at)
        if found is None:
            return False
        if found[1] == etag:
            return True
        at = found.end()
    return False
