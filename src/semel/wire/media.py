"""Media types: which streams hold JSON, which hold text, and which types are our own."""

from functools import lru_cache
from typing import Final

JSON: Final = "application/json"
BATCH: Final = "application/vnd.semel.batch"
FRAMES: Final = "application/vnd.semel.frames"
PROBLEM: Final = "application/problem+json"
EVENTS: Final = "text/event-stream"


@lru_cache(maxsize=256)
def normalise(content_type: str) -> str:
    """Drop the parameters and the case."""
    return content_type.partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    """Tell whether a stream of this type holds JSON messages."""
    return content_type == JSON or normalise(content_type) == JSON


def is_text(content_type: str) -> bool:
    """Tell whether a stream of this type holds text."""
    return normalise(content_type).startswith("text/")
