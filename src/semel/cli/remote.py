"""Asking a server, with nothing but the standard library."""

import contextlib
import http.client
import ssl
from collections.abc import Mapping
from typing import Any, Final, Self
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Struct

from semel.cli.exits import EXIT_NOT_UNDERSTOOD, EXIT_REFUSED, EXIT_UNAVAILABLE, Refused
from semel.model.limits import MIB
from semel.model.media import normalise
from semel.wire.media import PROBLEM

ANSWER_BYTES_MAX: Final = 64 * MIB
_SHOWN_CHARS_MAX: Final = 200

# A HEAD is refused without a body: the status has to say it.
_BODILESS: Final[Mapping[int, tuple[str, str]]] = {
    404: ("stream_not_found", "there is no such stream"),
    410: ("stream_gone", "the stream is deleted; only its forks have its data"),
}

# What to do next, where the message does not say it.
_ADVICE: Final[Mapping[str, str]] = {
    "stream_not_found": "`semel ls` shows what there is, `semel create` makes one",
    "stream_gone": "its path is free again once its forks are deleted",
    "stream_closed": "it takes no more appends; create another one",
    "config_conflict": "`semel head` shows what it has; use that, or another path",
    "content_type_conflict": "leave --content-type away to send the stream's own",
    "precondition_failed": "read what was appended in between, then decide anew",
    "OFFSET_BEYOND_TAIL": "`semel head` shows where it ends",
    "offset_trimmed": "start at its head, or with --offset -1",
    "PRODUCER_FENCED": "stop this instance, or raise --epoch and begin with --seq 0",
    "UNKNOWN_PRODUCER_ID": "`semel producers ls` shows who writes; `register` gives out ids",
    "producer_seq_conflict": "send again from the sequence that is missing",
    "epoch_must_start_at_zero": "begin with --seq 0",
    "idempotency_key_reused": "use a fresh --key for each message",
    "disk_full": "free some space and send the same again",
    "overloaded": "send the same again, later",
}


class Answer(Struct, frozen=True):
    """What a server said; names of headers in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def header(self, name: str) -> str:
        """Give a header every such answer of semel has."""
        value = self.headers.get(name)
        if value is None:
            raise NotUnderstood(f"the answer ({self.status}) has no {name}; is this semel?")
        return value

    def expect(self, status: int) -> None:
        """Take nothing but this for a success."""
        if self.status != status:
            raise NotUnderstood(f"the answer was {self.status}, not {status}; is this semel?")

    @property
    def is_closed(self) -> bool:
        """Whether it says that the stream is closed."""
        return self.headers.get("stream-closed") == "true"


class ServerRefused(Refused):
    """The server said no."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message, EXIT_REFUSED)
        self.status = status
        self.problem_code = code


class Unreachable(Refused):
    """There is no server, or it went away before it answered."""

    def __init__(self, message: str) -> None:
        super().__init__(message, EXIT_UNAVAILABLE)


class NotUnderstood(Refused):
    """Something answered that does not speak as semel does."""

    def __init__(self, message: str) -> None:
        super().__init__(message, EXIT_NOT_UNDERSTOOD)


class Server:
    """One server, over one connection at a time."""

    def __init__(self, url: str, timeout: float) -> None:
        self.url = url
        self._timeout = timeout
        self._connection, self._base = _connection_to(url, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._connection.close()

    def ask(
        self,
        method: str,
        target: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        patience: float = 0.0,
    ) -> Answer:
        """Send a request and read the answer; a refusal is raised.

        `patience`: seconds the server may wait by itself before it answers.
        """
        address = self._base + target + (f"?{urlencode(query)}" if query else "")
        fields = {"Accept": "application/json", **(headers or {})}
        _check_fields(fields)
        self._connect(self._timeout + patience)
        try:
            answer = self._exchange(method, address, fields, body)
        except (http.client.HTTPException, OSError) as error:
            self._connection.close()
            raise self._lost(error, method) from error
        return _accepted(answer, method)

    def _connect(self, timeout: float) -> None:
        self._connection.timeout = timeout
        try:
            if self._connection.sock is None:
                self._connection.connect()
            self._connection.sock.settimeout(timeout)
        except ssl.SSLCertVerificationError as error:
            self._connection.close()
            advice = "name the PEM file of who signed it in SSL_CERT_FILE"
            message = f"the certificate of {self.url} is not trusted ({error.verify_message})"
            raise Unreachable(f"{message}; {advice}") from error
        except (OSError, UnicodeError) as error:
            self._connection.close()
            advice = "start one with `semel serve`, or say with --url where it is"
            message = f"no server at {self.url} ({_reason(error)}); {advice}"
            raise Unreachable(message) from error

    def _exchange(
        self, method: str, address: str, fields: Mapping[str, str], body: bytes
    ) -> Answer:
        connection = self._connection
        # It may have answered before it hung up, such as 413.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method, address, body or None, dict(fields))
        response = connection.getresponse()
        size = response.getheader("Content-Length", "0")
        if size.isdigit() and int(size) > ANSWER_BYTES_MAX:
            connection.close()
            raise NotUnderstood(f"the answer of {self.url} has {size} bytes; is this semel?")
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, response.read())

    def _lost(self, error: Exception, method: str) -> Refused:
        is_cut = isinstance(error, OSError | http.client.IncompleteRead)
        if not is_cut:
            return NotUnderstood(f"{self.url} does not speak HTTP ({_reason(error)}); check --url")
        message = f"{self.url} went away before it answered ({_reason(error)})"
        if isinstance(error, TimeoutError):
            message = f"{self.url} gave no answer in time; --timeout says how long to wait"
        if method == "POST":
            message += (
                "; it may have been stored or not: to be safe send the same again,"
                " and next time with --producer-id or --key"
            )
        elif method in {"PUT", "DELETE"}:
            message += "; it may have been done or not: try again"
        return Unreachable(message)


def _connection_to(url: str, timeout: float) -> tuple[http.client.HTTPConnection, str]:
    wanted = "wanted is one such as http://127.0.0.1:4437"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise Refused(f"--url {url} is not a URL ({error}); {wanted}") from error
    is_plain = not (parts.query or parts.fragment or parts.username or parts.password)
    base = parts.path.rstrip("/")
    if parts.scheme not in {"http", "https"} or not host or not is_plain or not base.isascii():
        raise Refused(f"--url {url} is not the address of a server; {wanted}")
    if parts.scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=context), base
    return http.client.HTTPConnection(host, port, timeout=timeout), base


def _check_fields(fields: Mapping[str, str]) -> None:
    for name, value in fields.items():
        if not (value.isascii() and value.isprintable()):
            raise Refused(f"{name} must be printable ASCII, and {value!r} is not")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


# ---- what it says --------------------------------------------------------------------------------


def _accepted(answer: Answer, method: str) -> Answer:
    if 200 <= answer.status < 300:
        return answer
    if method == "HEAD" and answer.status in _BODILESS:
        code, message = _BODILESS[answer.status]
        raise ServerRefused(answer.status, code, _with_advice(code, f"{code}: {message}"))
    problem = _problem_of(answer)
    if problem is None:
        said = answer.body[:_SHOWN_CHARS_MAX].decode("utf-8", "replace").strip()
        raise NotUnderstood(
            f"the answer was {answer.status}, and not in words of semel; check --url"
            + (f": {said}" if said else "")
        )
    code = str(problem.pop("code"))
    message = str(problem.pop("message"))
    text = f"{code}: {message}"
    is_unknown = problem.pop("applied", "no") != "no"
    listed = ", ".join(
        f"{name} {value}"
        for name, value in problem.items()
        if value is not None and not (isinstance(value, str) and value in message)
    )
    text += f" ({listed})" if listed else ""
    text += "; it may have been applied" if is_unknown else ""
    raise ServerRefused(answer.status, code, _with_advice(code, text))


def _with_advice(code: str, text: str) -> str:
    return f"{text}; {_ADVICE[code]}" if code in _ADVICE else text


def _problem_of(answer: Answer) -> dict[str, Any] | None:
    if normalise(answer.headers.get("content-type", "")) != PROBLEM:
        return None
    try:
        problem = msgspec.json.decode(answer.body, type=dict[str, Any])
    except msgspec.DecodeError:
        return None
    return problem if "code" in problem and "message" in problem else None
