"""Sending what `wire` made of an outcome."""

import asyncio
from typing import Final

from semel.model.limits import KIB
from semel.server.http import Responder
from semel.wire.rendering import Response, compress

_GZIP_HERE_BYTES_MAX: Final = 32 * KIB


def send(responder: Responder, response: Response) -> None:
    """Send an answer of `wire`."""
    if not response.is_to_gzip:
        responder.send(response)
    elif len(response.body) <= _GZIP_HERE_BYTES_MAX:
        send(responder, compress(response))
    else:
        # A long body would keep everybody else waiting; the order of answers is the connection's.
        work = asyncio.get_running_loop().run_in_executor(None, compress, response)
        work.add_done_callback(lambda done: send(responder, done.result()))
