"""Placing messages."""

from semel.machine.events import DATA, Section
from semel.model.checksum import crc32c
from semel.model.commands import Batch
from semel.model.media import is_json


def section_of(
    number: int, base: int, batch: Batch, content_type: str, kind: int = DATA
) -> Section:
    """Place a batch at an offset of a stream, or nowhere yet."""
    is_joined = batch.count > 1 and is_json(content_type)
    return Section(
        number, base, batch.count, batch.payload, batch.lengths, is_joined, batch.extras, kind
    )


def digest_of_chunk(section: Section) -> int:
    """Tell chunks apart with the 32 bits there is room for: the first half of a digest."""
    has_bounds = section.count > 1 and not section.is_joined
    rest = section.extras + section.lengths if has_bounds else section.extras
    return crc32c(rest, crc32c(section.payload))
