"""SIGHUP: `semel serve` loads its files again."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from typing import Final

from semel.cli.output import CommandRefused
from semel.cli.serve_config import LoadedFiles
from semel.server.identities import OutsideIdentities
from semel.server.listener import Listener
from semel.server.webhook_deliveries import WebhookDeliveries
from semel.server.webhook_keys import BadWebhookKeys
from semel.server.webhooks import WebhookFiles

_log: Final = logging.getLogger("semel.server")


class FileReload:
    """Loads the files of a server again. `load` raises CommandRefused, and changes nothing.

    `tls_cert`, `config` and `webhook_ca` are names of files, or None if the server has none.
    """

    def __init__(
        self,
        load: Callable[[], LoadedFiles],
        listener: Listener,
        identities: OutsideIdentities,
        *,
        tls_cert: str | None,
        config: str | None,
        webhook_ca: str | None,
    ) -> None:
        self._load = load
        self._listener = listener
        self._identities = identities
        self._tls_cert = tls_cert
        self._config = config
        self._webhook_ca = webhook_ca
        self._deliveries: WebhookDeliveries | None = None
        self._webhooks: WebhookFiles | None = None  # those that were loaded last

    def use_for(self, deliveries: WebhookDeliveries) -> None:
        """Give deliveries the files that are loaded again, also those that have been already."""
        self._deliveries = deliveries
        if self._webhooks is not None:
            deliveries.replace(self._webhooks)

    def on_hangup(self) -> None:
        """Load the files at every SIGHUP, instead of ending the process.

        A terminal that closes and programs that rotate logs send it. Neither must end a server.
        """
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reload)

    def reload(self) -> None:
        """Load certificates, rules and keys again. If anything fails, keep everything as it is."""
        try:
            files = self._load()
            if self._deliveries is not None:  # first, because only this can be refused
                self._deliveries.replace(files.webhooks)
        except (CommandRefused, BadWebhookKeys) as refusal:
            _log.error(
                "SIGHUP: %s; the server keeps its present certificate and rules, and its keys",
                refusal,
            )
            return
        self._webhooks = files.webhooks
        has_webhooks = files.webhooks.keys is not None or self._webhook_ca is not None
        if self._tls_cert is None and self._config is None and not has_webhooks:
            _log.warning("SIGHUP is ignored; send SIGTERM to stop the server")
            return
        if files.tls is not None:
            self._listener.replace_tls(files.tls)
            _log.warning("SIGHUP: the certificate is loaded again from %s", self._tls_cert)
        if self._config is not None:
            self._identities.replace(files.certificates, files.jwt)
            _log.warning("SIGHUP: the table [access] is loaded again from %s", self._config)
            if files.has_identities and not self._identities.is_used:
                _log.error("SIGHUP: access is off until the server is started again")
        if has_webhooks:
            _log.warning("SIGHUP: the keys of webhooks are loaded again")
