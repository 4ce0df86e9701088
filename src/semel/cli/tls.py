"""The certificate a server shows."""

import ssl
from typing import NoReturn

from semel.cli.exits import Refused


def server_context(cert: str | None, key: str | None) -> ssl.SSLContext | None:
    """Load a certificate and its key from PEM files; None if there is none."""
    if cert is None:
        if key is not None:
            raise Refused("--tls-key needs --tls-cert, the certificate it belongs to")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except ssl.SSLError as error:
        files = cert if key is None else f"{cert} and {key}"
        reason = error.reason or "no PEM"
        raise Refused(
            f"{files} are no certificate and its key ({reason}); give PEM files"
            " with --tls-cert and --tls-key"
        ) from error
    except OSError as error:
        files = cert if key is None else f"{cert} or {key}"
        raise Refused(f"{files} cannot be read: {error.strerror}") from error
    return context


def _no_password() -> NoReturn:
    raise Refused("the key is locked with a password; give one that is not")
