"""What the handlers of subscriptions and the deliveries share: keys, addresses, targets."""

import ssl
from importlib.util import find_spec
from typing import Final

from msgspec import Struct

from semel.model.limits import WEBHOOK_ATTEMPTS_DEFAULT
from semel.server.host_names import name_of, to_address
from semel.server.webhook_keys import BadWebhookKeys, WebhookKeys
from semel.server.webhook_targets import TargetPolicy, check_url, is_localhost
from semel.wire.paths import origin_of


class WebhookSettings(Struct, frozen=True, kw_only=True):
    """The settings of webhooks. `key_file` and `ca_file` are names of files.

    `public_url` is the origin by which receivers reach the server, if it is another one than that
    on which it listens.
    """

    key_file: str
    public_url: str | None = None
    policy: TargetPolicy = TargetPolicy()
    ca_file: str | None = None
    attempts_max: int = WEBHOOK_ATTEMPTS_DEFAULT


class WebhookFiles(Struct, frozen=True):
    """What is loaded from files, and again at SIGHUP. `keys` is None if the file does not exist."""

    keys: WebhookKeys | None
    context: ssl.SSLContext


class Webhooks:
    """The settings and the keys of webhooks. Methods are called on the event loop's thread.

    `origin` is the address of the server, such as `http://127.0.0.1:4437`. The file with the keys
    is created when keys are needed first: that blocks the caller for a few writes, once in all.
    """

    def __init__(
        self, settings: WebhookSettings, origin: str, files: WebhookFiles | None = None
    ) -> None:
        self.settings: Final = settings
        self.origin: Final = origin
        self._files = files or load_webhook_files(settings)

    @property
    def context(self) -> ssl.SSLContext:
        """The authorities that receivers' certificates are checked with."""
        return self._files.context

    @property
    def keys(self) -> WebhookKeys:
        """The keys, after creating them if there are none. Raises BadWebhookKeys."""
        if self._files.keys is None:
            keys = WebhookKeys.load_or_create(self.settings.key_file)
            self._files = WebhookFiles(keys, self._files.context)
            return keys
        return self._files.keys

    def replace(self, files: WebhookFiles) -> None:
        """Use files that were loaded again.

        Raises BadWebhookKeys, and keeps the present files, if that of the keys in use is missing:
        new keys would end the tokens of all wakes in flight.
        """
        if files.keys is None and self._files.keys is not None:
            raise BadWebhookKeys(f"{self.settings.key_file} does not exist any more")
        self._files = files

    # ---- addresses of this server ----------------------------------------------------------------

    @property
    def callback_origin(self) -> str | None:
        """The origin of the URLs that receivers call, or None if none is known."""
        if self.settings.public_url is not None:
            return self.settings.public_url
        return self.origin if is_loopback_origin(self.origin) else None

    def jwks_origin(self, host: str | None) -> str:
        """Return the origin of the JWKS document in a response to a request with this Host header.

        A header is used only if it names this machine: every other one could be an invention of the
        client, which would then be repeated to other clients.
        """
        if self.settings.public_url is not None:
            return self.settings.public_url
        origin = origin_of(host, self.origin.partition(":")[0])
        return origin if origin is not None and is_loopback_origin(origin) else self.origin

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
        return check_url(url, self.settings.policy)


def is_loopback_origin(url: str) -> bool:
    """Return whether the host in a URL is `localhost` or a loopback address."""
    name = name_of(url.partition("://")[2].partition("/")[0]).lower()
    if is_localhost(name):
        return True
    address = to_address(name[1:-1] if name.startswith("[") else name)
    return address is not None and address.is_loopback


def load_webhook_files(settings: WebhookSettings) -> WebhookFiles:
    """Load the keys, if there are some, and the authorities. Raises BadWebhookKeys.

    The authorities are those of the system, and those in `ca_file`.
    """
    try:
        keys = WebhookKeys.find(settings.key_file)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificates and names
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_default_certs()
        if settings.ca_file is not None:
            context.load_verify_locations(settings.ca_file)
    except ssl.SSLError as error:
        reason = error.reason or "not PEM"
        raise BadWebhookKeys(
            f"cannot load certificates from {settings.ca_file} ({reason})"
        ) from error
    except OSError as error:
        raise BadWebhookKeys(f"{settings.ca_file} cannot be read: {error.strerror}") from error
    return WebhookFiles(keys, context)
