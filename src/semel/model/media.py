"""Media types: stored as they are sent, compared without case and parameters."""

from functools import lru_cache
from typing import Final

DEFAULT_MEDIA_TYPE: Final = "application/octet-stream"
JSON_MEDIA_TYPE: Final = "application/json"


@lru_cache(maxsize=256)
def normalise(content_type: str) -> str:
    """Return the part of a Content-Type that is compared."""
    return content_type.partition(";")[0].strip().lower()


def same_media_type(media_type: str | None, stored: str) -> bool:
    """Return whether two media types are the same; None is the default type."""
    return normalise(media_type or DEFAULT_MEDIA_TYPE) == normalise(stored)


def is_json(content_type: str) -> bool:
    """Return whether a stream of this type holds JSON messages."""
    return content_type == JSON_MEDIA_TYPE or normalise(content_type) == JSON_MEDIA_TYPE


def is_text(content_type: str) -> bool:
    """Return whether a stream of this type holds text."""
    return normalise(content_type).startswith("text/")
