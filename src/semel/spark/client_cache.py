"""Clients kept for the life of a process: Spark reuses its workers, and so their connections."""

import os
from typing import Final

from semel.client.sync.client import Client

_Key = tuple[int, str, str | None, float]
_clients: Final[dict[_Key, Client]] = {}


def client_for(url: str, token: str | None, retry_timeout: float) -> Client:
    """Give this process's client of a server; calls are tried again for `retry_timeout` seconds.

    Nobody closes it: it lives as long as the process. A fork gets one of its own.
    """
    key = (os.getpid(), url, token, retry_timeout)
    client = _clients.get(key)
    if client is None:
        # Of two threads that come at once one wins; a client without connections costs nothing.
        client = _clients.setdefault(key, Client(url, token=token, timeout=retry_timeout))
    return client
