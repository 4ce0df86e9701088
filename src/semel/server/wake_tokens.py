"""The tokens of wakes: makes them for workers, and reads them in requests.

They are made with keys in a file, which is loaded or created when it is needed first.
"""

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from semel.server.http import Request
from semel.server.webhook_keys import BadWebhookKeys, WebhookKeys
from semel.server.webhooks import Webhooks
from semel.wire.problems import MalformedRequest, Problem
from semel.wire.tokens import bearer_of

T = TypeVar("T")

_log: Final = logging.getLogger("semel.server")


class WakeTokens:
    """Makes and reads the tokens of wakes. All methods are called on the event loop's thread."""

    def __init__(self, webhooks: Webhooks) -> None:
        self._webhooks = webhooks

    @property
    def keys(self) -> WebhookKeys:
        """The keys of this server. Raises MalformedRequest with status 500 if it has none."""
        return self.use(lambda keys: keys)

    def use(self, function: Callable[[WebhookKeys], T]) -> T:
        """Return what a function of the keys returns. Raises MalformedRequest with status 500.

        It does so if there are no keys, and if they need a package that is not installed.
        """
        try:
            return function(self._webhooks.keys)
        except (BadWebhookKeys, ImportError) as error:
            _log.error("the keys of webhooks cannot be used: %s", error)
            message = "the server cannot use its keys of webhooks; see its log"
            raise MalformedRequest(Problem(500, "internal_error", message)) from error

    def read(self, token: str, name: str) -> tuple[str, int] | None:
        """Return the wake id and the generation in a token of the subscription `name`, or None.

        Raises MalformedRequest as `keys` does.
        """
        return self.keys.is_token_of(token, name)

    def read_request(self, request: Request, name: str) -> tuple[str, int] | None:
        """Do the same as `read` for the token in the header Authorization of a request."""
        bearer = bearer_of(request.headers, request.repeated)
        return None if bearer is None else self.read(bearer, name)
