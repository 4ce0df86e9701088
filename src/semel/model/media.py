"""Media types: stored as given, compared without case and parameters."""

from functools import lru_cache
from typing import Final

DEFAULT_MEDIA_TYPE: Final = "application/octet-stream"
JSON_MEDIA_TYPE: Final = "application/json"


@lru_cache(maxsize=256)
def normalise(content_type: str) -> str:
    """Reduce a Content-Type to what is compared."""
    return content_type.partition(";")[0].strip().lower()


def same_media_type(given: str | None, stored: str) -> bool:
    """Compare; None is the default type."""
    return normalise(given or DEFAULT_MEDIA_TYPE) == normalise(stored)


def is_json(content_type: str) -> bool:
    """Tell whether a stream holds JSON messages."""
    return content_type == JSON_MEDIA_TYPE or normalise(content_type) == JSON_MEDIA_TYPE


def is_text(content_type: str) -> bool:
    """Tell whether a stream holds text."""
    return normalise(content_type).startswith("text/")
