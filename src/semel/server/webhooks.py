"""What the handlers of subscriptions and the deliveries share: keys, addresses, targets."""

from importlib.util import find_spec
from typing import Final

from semel.model.limits import WEBHOOK_ATTEMPTS_DEFAULT
from semel.server.host_names import name_of, to_address
from semel.server.webhook_keys import WebhookKeys
from semel.server.webhook_targets import TargetPolicy, check_url, is_localhost
from semel.wire.paths import origin_of

_DEFAULT: Final = TargetPolicy()


class Webhooks:
    """The settings and the keys of webhooks. Methods are called on the event loop's thread.

    `origin` is the address of the server, such as `http://127.0.0.1:4437`, and `public_url` is the
    one by which receivers reach it, if it is another one. The file with the keys is created when
    keys are needed first: that blocks the caller for a few writes, once in all.
    """

    def __init__(
        self,
        key_file: str,
        *,
        origin: str,
        public_url: str | None = None,
        policy: TargetPolicy = _DEFAULT,
        attempts_max: int = WEBHOOK_ATTEMPTS_DEFAULT,
    ) -> None:
        self.policy: Final = policy
        self.attempts_max: Final = attempts_max
        self._key_file = key_file
        self._origin = origin
        self._public_url = public_url
        self._keys: WebhookKeys | None = None

    @property
    def keys(self) -> WebhookKeys:
        """The keys, after creating them if there are none. Raises BadWebhookKeys."""
        if self._keys is None:
            self._keys = WebhookKeys.load_or_create(self._key_file)
        return self._keys

    def replace(self, keys: WebhookKeys | None) -> None:
        """Use keys that were loaded again from the file; None to load or create them if needed."""
        self._keys = keys

    # ---- addresses of this server ----------------------------------------------------------------

    @property
    def callback_origin(self) -> str | None:
        """The origin of the URLs that receivers call, or None if none is known."""
        if self._public_url is not None:
            return self._public_url
        return self._origin if is_loopback_origin(self._origin) else None

    def jwks_origin(self, host: str | None) -> str:
        """Return the origin of the JWKS document in a response to a request with this Host header.

        A header is used only if it names this machine: every other one could be an invention of the
        client, which would then be repeated to other clients.
        """
        if self._public_url is not None:
            return self._public_url
        origin = origin_of(host, self._origin.partition(":")[0])
        if origin is not None and is_loopback_origin(origin):
            return origin
        return self._origin

    # ---- what is allowed -------------------------------------------------------------------------

    def unusable(self) -> str | None:
        """Return why the server cannot deliver webhooks at all, or None if it can."""
        if self.callback_origin is None:
            return (
                "the server has no address that receivers can call: start it with --public-url,"
                " such as --public-url https://semel.example"
            )
        if find_spec("cryptography") is None:
            return (
                "the server cannot sign webhooks without the package cryptography; install it with"
                " pip install 'semel[webhooks]'"
            )
        return None

    def refuse_url(self, url: str) -> str | None:
        """Return why a subscription cannot have this URL, or None if it can. See `check_url`."""
        return check_url(url, self.policy)


def is_loopback_origin(origin: str) -> bool:
    """Return whether an origin names this machine by `localhost` or by an address."""
    name = name_of(origin.partition("://")[2]).lower()
    if is_localhost(name):
        return True
    address = to_address(name[1:-1] if name.startswith("[") else name)
    return address is not None and address.is_loopback
