"""Reads that keep the messages apart, for `semel read` and `semel tail`."""

from typing import Final

from semel.cli.options import target_of
from semel.cli.remote import Answer, NotUnderstood, Server
from semel.model.offsets import print_offset
from semel.wire.bodies import BadFormat, Frames, decode_frames
from semel.wire.media import FRAMES

# How much longer than any request a long-poll may take before it is asked again.
_POLL_PATIENCE: Final = 60.0


class Page:
    """Part of a stream, and where to go on."""

    def __init__(self, answer: Answer) -> None:
        self.frames: Frames | None = None
        self.next_offset = answer.header("stream-next-offset")
        self.incarnation = answer.header("stream-incarnation")
        self.is_up_to_date = "stream-up-to-date" in answer.headers
        self.is_closed = answer.is_closed
        self.cursor = answer.headers.get("stream-cursor")
        if answer.status == 204:
            return
        if answer.headers.get("content-type") != FRAMES:
            raise NotUnderstood(f"the server does not know {FRAMES}; is this semel?")
        try:
            self.frames = decode_frames(answer.body)
        except BadFormat as error:
            raise NotUnderstood(f"the answer is not {FRAMES}: {error}") from error
        if print_offset(self.frames.next_offset) != self.next_offset:
            raise NotUnderstood("the answer contradicts itself about where to go on")


def read_page(server: Server, path: str, offset: str) -> Page:
    """Read what is there."""
    headers = {"Accept": FRAMES}
    return Page(server.ask("GET", target_of(path), query={"offset": offset}, headers=headers))


def poll_page(server: Server, path: str, offset: str, cursor: str | None) -> Page:
    """Read what is there, or wait for it."""
    query = {"offset": offset, "live": "long-poll"}
    if cursor is not None:
        query["cursor"] = cursor
    headers = {"Accept": FRAMES}
    return Page(
        server.ask("GET", target_of(path), query=query, headers=headers, patience=_POLL_PATIENCE)
    )
