"""The media types the wire speaks itself."""

from typing import Final

BATCH: Final = "application/vnd.semel.batch"
FRAMES: Final = "application/vnd.semel.frames"
PROBLEM: Final = "application/problem+json"
EVENTS: Final = "text/event-stream"
