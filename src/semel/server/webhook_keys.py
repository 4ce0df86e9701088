"""The keys of webhooks: one file with the key that signs, and the key of the tokens of wakes.

The file is created on first use, for its owner only, and is replaced as a whole: at any moment it
is complete, or it does not exist. It has the private key of the signatures, the public keys of
earlier ones, and the secret with which tokens are made.

`cryptography` is imported when something is signed, or when the public key is needed. Tokens of
wakes do not need it, so that pull-wake subscriptions work without it.
"""

import contextlib
import fcntl
import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterator
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from semel.journal.disk import (
    OTHERS_MODE,
    create_empty_file,
    overwrite_file,
    publish_file,
    sync_file,
)
from semel.model.errors import DiskFailed
from semel.model.limits import KIB, NUMBER_MAX
from semel.wire.webhook_signatures import (
    KEY_BYTES,
    WebhookSignature,
    from_base64url,
    kid_of,
    print_jwks,
    print_signature,
    signed_bytes,
    to_base64url,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FILE_VERSION: Final = 1
FILE_BYTES_MAX: Final = 64 * KIB
TOKEN_BYTES_MAX: Final = 1 * KIB
# A retired key stays in the JWKS document for a week: receivers may have stored a delivery, or the
# document, and a server that still signs with the old key may not have been restarted yet.
RETIRED_SECONDS: Final = 7 * 24 * 3600
RETIRED_MAX: Final = 100

_DOMAIN: Final = b"semel wake token 1"
_TOKEN: Final = re.compile(r"wake1\.(0|[1-9][0-9]{0,15})\.([A-Za-z0-9_-]*)\.[A-Za-z0-9_-]{43}")
_LOCK_ATTEMPTS: Final = 100


class BadWebhookKeys(ValueError):
    """The file with the keys of webhooks cannot be used, created or changed.

    The message names the file and the reason. Nothing was changed.
    """


class _RetiredDocument(Struct, forbid_unknown_fields=True):
    public_key: str
    retired_at_s: int


class _Document(Struct, forbid_unknown_fields=True):
    """The content of the file. Keys are in base64url."""

    version: int
    signing_key: str
    token_key: str
    retired: list[_RetiredDocument]

    def __repr__(self) -> str:
        return "_Document()"  # without the secrets


class RetiredKey(Struct, frozen=True):
    """A public key with which nothing is signed any more, and when that began."""

    public_key: bytes
    retired_at_s: int


class WebhookKeys:
    """The keys of a server: signs deliveries, and makes and checks the tokens of wakes."""

    def __init__(self, signing_key: bytes, token_key: bytes, retired: tuple[RetiredKey, ...]):
        assert len(signing_key) == len(token_key) == KEY_BYTES
        self._signing_key = signing_key
        self._token_mac = hmac.new(token_key, _DOMAIN, sha256)
        self._token_key = token_key
        self._retired = retired

    @cached_property
    def _private(self) -> "Ed25519PrivateKey":
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
            Ed25519PrivateKey,
        )

        return Ed25519PrivateKey.from_private_bytes(self._signing_key)

    @cached_property
    def public_key(self) -> bytes:
        """The 32 bytes of the key that verifies signatures. Raises ImportError."""
        return self._private.public_key().public_bytes_raw()

    @cached_property
    def kid(self) -> str:
        """The name of the public key in signatures and in the JWKS document."""
        return kid_of(self.public_key)

    # ---- signatures ------------------------------------------------------------------------------

    def sign(self, raw_body: bytes, now_s: int) -> str:
        """Return the value of the header Webhook-Signature for a body that is sent now."""
        signature = self._private.sign(signed_bytes(raw_body, now_s))
        return print_signature(WebhookSignature(now_s, self.kid, signature))

    def jwks(self, now_s: int | None = None) -> bytes:
        """Return the JWKS document: the current key, then retired ones, the newest first.

        With `now_s`, keys that were retired more than RETIRED_SECONDS ago are left out. `rotate`
        removes them from the file.
        """
        retired = self._retired if now_s is None else _still_published(self._retired, now_s)
        return print_jwks([self.public_key, *(key.public_key for key in retired)])

    def published(self, now_s: int) -> tuple[RetiredKey, ...]:
        """Return the retired keys that are still in the JWKS document, the newest first."""
        return _still_published(self._retired, now_s)

    # ---- tokens ----------------------------------------------------------------------------------

    def token(self, subscription_id: str, wake_id: str, generation: int) -> str:
        """Return the token of a wake, which permits a worker to ack it.

        It contains the wake id and the generation, and a code (HMAC-SHA256) over these and the id
        of the subscription. It has only characters that a Bearer token may have.
        """
        wake = _to_bytes(wake_id)
        mac = self._token_mac.copy()
        mac.update(_token_data(_to_bytes(subscription_id), wake, generation))
        return f"wake1.{generation}.{to_base64url(wake)}.{to_base64url(mac.digest())}"

    def is_token_of(self, token: str, subscription_id: str) -> tuple[str, int] | None:
        """Return the wake id and the generation of a token of this subscription, else None.

        The code is compared in constant time; what is parsed before is not secret.
        """
        match = _TOKEN.fullmatch(token) if len(token) <= TOKEN_BYTES_MAX else None
        wake = None if match is None else from_base64url(match[2])
        if match is None or wake is None or int(match[1]) > NUMBER_MAX:
            return None
        try:
            wake_id, generation = wake.decode(errors="surrogatepass"), int(match[1])
        except UnicodeDecodeError:
            return None
        expected = self.token(subscription_id, wake_id, generation)
        return (wake_id, generation) if hmac.compare_digest(expected, token) else None

    # ---- the file --------------------------------------------------------------------------------

    @classmethod
    def load_or_create(cls, path: str) -> "WebhookKeys":
        """Return the keys in a file, after creating it with new keys if it does not exist.

        If several processes do this at once, one of them creates the file, and all use it. Raises
        BadWebhookKeys.
        """
        try:
            return _read(path)
        except FileNotFoundError:
            pass
        new = cls(secrets.token_bytes(KEY_BYTES), secrets.token_bytes(KEY_BYTES), ())
        try:
            with _temporary(path, new._encode()) as temporary:
                # A link, not a rename, because it fails if the file exists now.
                os.link(temporary, path)
                sync_file(os.path.dirname(path) or ".")
        except FileExistsError:
            pass
        except (OSError, DiskFailed) as error:
            raise _failed(path, "cannot be created", error) from error
        return cls.load(path)

    @classmethod
    def find(cls, path: str) -> "WebhookKeys | None":
        """Return the keys in a file, or None if it does not exist. Raises BadWebhookKeys."""
        try:
            return _read(path)
        except FileNotFoundError:
            return None

    @classmethod
    def load(cls, path: str) -> "WebhookKeys":
        """Return the keys in a file. Raises BadWebhookKeys, also if the file does not exist."""
        try:
            return _read(path)
        except FileNotFoundError as error:
            raise _failed(path, "cannot be read", error) from error

    @classmethod
    def rotate(cls, path: str, now_s: int) -> "WebhookKeys":
        """Replace the signing key in a file, and return the keys in it now. Raises BadWebhookKeys.

        The old public key stays in the JWKS document. The key of the tokens stays, so that wakes in
        flight can be acked. A running server uses the old keys until it loads the file again.
        """
        path = os.path.realpath(path)  # a symbolic link stays one
        try:
            with _locked(path):
                old = _read(path)
                retired = (RetiredKey(old.public_key, now_s), *old._retired)
                kept = _still_published(retired, now_s)
                if len(kept) > RETIRED_MAX:
                    message = f"{path}: {RETIRED_MAX} keys were retired in the last 7 days; wait"
                    raise BadWebhookKeys(message)
                new = cls(secrets.token_bytes(KEY_BYTES), old._token_key, kept)
                with _temporary(path, new._encode()) as temporary:
                    _keep_owner(path, temporary)
                    publish_file(temporary, path)
        except (OSError, DiskFailed) as error:
            raise _failed(path, "cannot be changed", error) from error
        return new

    def _encode(self) -> bytes:
        document = _Document(
            FILE_VERSION,
            to_base64url(self._signing_key),
            to_base64url(self._token_key),
            [_RetiredDocument(to_base64url(k.public_key), k.retired_at_s) for k in self._retired],
        )
        return msgspec.json.encode(document) + b"\n"


def _still_published(retired: tuple[RetiredKey, ...], now_s: int) -> tuple[RetiredKey, ...]:
    return tuple(key for key in retired if now_s - key.retired_at_s <= RETIRED_SECONDS)


def _to_bytes(text: str) -> bytes:
    # Different texts have different bytes, also those that UTF-8 cannot encode.
    return text.encode(errors="surrogatepass")


def _token_data(subscription_id: bytes, wake_id: bytes, generation: int) -> bytes:
    """Return what the code of a token covers, after the domain.

    Every part has its length before it, so that different values never give the same bytes.
    """
    parts = (subscription_id, wake_id, generation.to_bytes(8, "big"))
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


# ---- reading and writing -------------------------------------------------------------------------


def _failed(path: str, what: str, error: OSError | DiskFailed) -> BadWebhookKeys:
    reason = error.strerror if isinstance(error, OSError) else None
    return BadWebhookKeys(f"{path}: the keys of webhooks {what}: {reason or error}")


def _read(path: str) -> WebhookKeys:
    """Return the keys in a file. Raises FileNotFoundError or BadWebhookKeys."""
    try:
        # Without O_NONBLOCK, opening a FIFO would wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            _check_file(path, os.fstat(fd))
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise
    except NotADirectoryError as error:  # the data directory is a file, which is refused later
        raise FileNotFoundError(error.errno, error.strerror) from error
    except OSError as error:
        raise _failed(path, "cannot be read", error) from error
    return _parse(path, data)


def _check_file(path: str, facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise BadWebhookKeys(f"{path} is not a regular file; pass the name of a file")
    if facts.st_mode & OTHERS_MODE:
        raise BadWebhookKeys(
            f"{path} has the keys of webhooks, and its rights are"
            f" {stat.S_IMODE(facts.st_mode):04o}, so others can use it; run `chmod 600` on it, and"
            " if others may have read it, delete it: the next start makes new keys"
        )


def _parse(path: str, data: bytes) -> WebhookKeys:
    if len(data) > FILE_BYTES_MAX:
        raise BadWebhookKeys(f"{path} has more than {FILE_BYTES_MAX} bytes")
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # The message of msgspec can show content of the file, which is secret.
        raise _malformed(path) from None
    if document.version != FILE_VERSION:
        raise BadWebhookKeys(
            f"{path} has the version {document.version} of the file with the keys of webhooks; this"
            f" version of semel reads version {FILE_VERSION}"
        )
    retired = tuple(
        RetiredKey(_key(path, each.public_key), each.retired_at_s) for each in document.retired
    )
    return WebhookKeys(_key(path, document.signing_key), _key(path, document.token_key), retired)


def _key(path: str, text: str) -> bytes:
    key = from_base64url(text)
    if key is None or len(key) != KEY_BYTES:
        raise _malformed(path)
    return key


def _malformed(path: str) -> BadWebhookKeys:
    return BadWebhookKeys(
        f"{path} is not a complete file with the keys of webhooks; restore it from a copy, or"
        " delete it: the next start makes new keys"
    )


@contextlib.contextmanager
def _temporary(path: str, data: bytes) -> Iterator[str]:
    """Write a durable file next to `path`, which is removed at the end unless it was renamed."""
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f".{name}.{secrets.token_hex(8)}")
    create_empty_file(temporary)
    try:
        overwrite_file(temporary, 0, data)
        yield temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _keep_owner(path: str, temporary: str) -> None:
    """Give a file the owner of the one that it replaces. Raises OSError.

    Otherwise a server could not read the keys any more if an administrator has replaced them.
    """
    old, new = os.stat(path), os.stat(temporary)
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        os.chown(temporary, old.st_uid, old.st_gid)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Lock the file that has the name `path`. Raises OSError.

    Whoever waits for the lock finds another file afterwards, if this one was replaced.
    """
    for _ in range(_LOCK_ATTEMPTS):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                yield
                return
        finally:
            os.close(fd)
    raise BadWebhookKeys(f"{path} is replaced all the time by other processes; try again")
