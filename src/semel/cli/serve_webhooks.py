"""The options of `semel serve` about webhooks, and the files that they name."""

import os
import re
from collections.abc import Iterable
from typing import Final

from semel.cli.output import CommandRefused
from semel.cli.serve_access import is_loopback
from semel.server.host_names import parse_origin
from semel.server.webhook_keys import BadWebhookKeys
from semel.server.webhook_targets import TargetPolicy, parse_network
from semel.server.webhooks import (
    WebhookFiles,
    WebhookSettings,
    is_loopback_origin,
    load_webhook_files,
)

KEY_FILE: Final = "webhook.key"  # in the data directory, if no option names another file

_PUBLIC_URL: Final = re.compile(r"(https?://[^/]+)((?:/[A-Za-z0-9._~!$&'()*+,;=:@%-]+)*)/?")


def key_file(data: str, name: str | None) -> str:
    """Return the name of the file with the keys of webhooks."""
    return os.path.join(data, KEY_FILE) if name is None else name


def parse_public_url(text: str) -> str:
    """Return a URL without a slash at its end. It can have a path, if a proxy removes that.

    Raises ValueError.
    """
    match = _PUBLIC_URL.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not the URL of a server; use a scheme, a host and perhaps a path, such"
            " as https://semel.example"
        )
    return parse_origin(match[1]) + match[2]


def checked_network(text: str) -> str:
    """Return a network as it is, if it is valid. Raises ValueError."""
    parse_network(text)
    return text


def target_policy(
    networks: Iterable[str],
    *,
    host: str,
    public_url: str | None,
    allowed_hosts: Iterable[str],
    is_guarded: bool,
) -> TargetPolicy:
    """Return which targets are allowed.

    Those on this machine are, while the server is for this machine only: it listens on loopback,
    access is off, and no option says that clients reach it by another name. A proxy on this machine
    needs one of the last two, and its clients must not reach other services on this machine.
    """
    names = [f"http://{each}" for each in allowed_hosts]
    names += [] if public_url is None else [public_url]
    is_private = is_loopback(host) and all(map(is_loopback_origin, names)) and not is_guarded
    return TargetPolicy(is_private, tuple(map(parse_network, networks)))


def load_webhooks(settings: WebhookSettings) -> WebhookFiles:
    """Load the keys of webhooks, if there are some, and certificates. Raises CommandRefused."""
    try:
        return load_webhook_files(settings)
    except BadWebhookKeys as error:
        raise CommandRefused(str(error)) from error
