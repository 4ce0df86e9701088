"""semel: a durable log with exactly-once writes.

Importing this package is fast, because it loads neither the server nor the broker nor Spark. The
client is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from semel.version import __version__

if TYPE_CHECKING:
    from semel import errors
    from semel.client.aio.client import AsyncClient
    from semel.client.credentials import context
    from semel.client.local import local
    from semel.client.subscription_values import WakeBatch
    from semel.client.sync.client import Client
    from semel.client.topic_values import Keyed
    from semel.client.transport import CLIENT_DEFAULT
    from semel.client.values import Message
    from semel.model.errors import SemelError

__all__ = [
    "CLIENT_DEFAULT",
    "AsyncClient",
    "Client",
    "Keyed",
    "Message",
    "SemelError",
    "WakeBatch",
    "__version__",
    "context",
    "errors",
    "local",
]


_HOMES = {
    "CLIENT_DEFAULT": "semel.client.transport",
    "AsyncClient": "semel.client.aio.client",
    "Client": "semel.client.sync.client",
    "Keyed": "semel.client.topic_values",
    "Message": "semel.client.values",
    "SemelError": "semel.model.errors",
    "WakeBatch": "semel.client.subscription_values",
    "context": "semel.client.credentials",
    "local": "semel.client.local",
}


def __getattr__(name: str) -> Any:
    """Return the public object `name`. Import the module that defines it if necessary.

    Raises AttributeError if `name` is not a public name.
    """
    if name == "errors":
        return import_module("semel.errors")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'semel' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
