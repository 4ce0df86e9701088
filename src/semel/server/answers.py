"""Sending what `wire` made of an outcome."""

import asyncio
from typing import Final

from semel.model.limits import KIB
from semel.server.http import Responder
from semel.server.unread import Unread
from semel.wire.rendering import Response, compress

_GZIP_HERE_BYTES_MAX: Final = 32 * KIB


def send(responder: Responder, response: Response, unread: Unread | None = None) -> None:
    """Send an answer of `wire`; a long one counts as unread from now on."""
    if not response.is_to_gzip:
        responder.send(response)
    elif len(response.body) <= _GZIP_HERE_BYTES_MAX:
        send(responder, compress(response))
    else:
        # A long body would keep everybody else waiting; the order of answers is the connection's.
        size = len(response.body)
        if unread is not None:
            unread.reserve(size)

        def compressed(work: asyncio.Future[Response]) -> None:
            send(responder, work.result())
            if unread is not None:
                unread.give_back(size)

        work = asyncio.get_running_loop().run_in_executor(None, compress, response)
        work.add_done_callback(compressed)
