"""From the response of a refused request to the error that is raised.

semel's responses have a stable code. Those of another Durable Streams server are recognised by
their status and headers.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from semel.client import errors
from semel.client.errors import ClientError, Indeterminate, Refused, Unavailable
from semel.model.messages import JSON_MEDIA_TYPE, normalise
from semel.wire.headers import PROBLEM, to_number
from semel.wire.refusal_table import BY_CODE

_BY_CODE: Final[Mapping[str, type[Refused]]] = {
    code: getattr(errors, entry.error) for code, entry in BY_CODE.items() if entry.error
}

_BY_STATUS: Final[Mapping[int, type[Refused]]] = {
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.StreamNotFound,
    410: errors.StreamGone,
    412: errors.PreconditionFailed,
    413: errors.TooLarge,
    429: errors.LimitReached,
    507: errors.DiskFull,
}

# Facts that a response may carry as headers only.
_FACTS: Final[Mapping[str, str]] = {
    "stream-next-offset": "next_offset",
    "producer-epoch": "current_epoch",
    "producer-seq": "last_seq",
    "producer-expected-seq": "expected_seq",
    "producer-received-seq": "received_seq",
}
_SHOWN_CHARS_MAX: Final = 200
_OWN: Final = frozenset({"code", "message", "applied"})


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> ClientError:
    """Return the error for a response of 300 or more: Refused, Unavailable or Indeterminate."""
    problem = _problem(headers, body)
    message = _message(status, problem, body)
    retry_after = retry_after_of(headers)
    applied = problem.get("applied")
    code = problem.get("code")
    code = code if isinstance(code, str) else None
    if status == 503 and applied == errors.NO:
        return Unavailable(message, status=status, retry_after=retry_after)
    if status >= 500 and applied != errors.NO:
        # A proxy may answer so although its server has processed the request.
        return Indeterminate(message, status=status, retry_after=retry_after)
    kind = _kind(status, code, headers)
    return kind(
        message,
        status=status,
        code=code,
        applied=applied if isinstance(applied, str) else errors.NO,
        facts=_facts(problem, headers),
        retry_after=retry_after,
    )


def retry_after_of(headers: Mapping[str, str]) -> float | None:
    """Return Retry-After in seconds; None if it is absent, a date or malformed."""
    seconds = to_number(headers.get("retry-after", ""))
    return None if seconds is None else float(seconds)


def _kind(status: int, code: str | None, headers: Mapping[str, str]) -> type[Refused]:
    kind = _BY_CODE.get(code or "")
    if kind is not None:
        return kind
    if status == 403 and "producer-epoch" in headers:
        return errors.ProducerFenced
    if status == 409 and "producer-expected-seq" in headers:
        return errors.SequenceGap
    if status == 409 and headers.get("stream-closed", "").lower() == "true":
        return errors.StreamClosed
    if status == 409:
        return Refused
    return _BY_STATUS.get(status, errors.BadRequest if 400 <= status < 500 else Refused)


def _problem(headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    media_type = normalise(headers.get("content-type", ""))
    if media_type not in (PROBLEM, JSON_MEDIA_TYPE):
        return {}
    try:
        problem = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    if not isinstance(problem, dict):
        return {}
    # The shape of another server: {"error": {"code": ..., "message": ...}}.
    inner = problem.get("error")
    return inner if isinstance(inner, dict) else problem


def _message(status: int, problem: Mapping[str, Any], body: bytes) -> str:
    text = problem.get("message") or problem.get("detail")
    if not isinstance(text, str) or not text:
        text = body[:_SHOWN_CHARS_MAX].decode("utf-8", "replace").strip()
    code = problem.get("code", "")
    return f"{status} {code}: {text}" if code else f"{status}: {text}" if text else f"{status}"


def _facts(problem: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, object]:
    facts: dict[str, object] = {name: value for name, value in problem.items() if name not in _OWN}
    for header, name in _FACTS.items():
        value = headers.get(header)
        if value is not None and name not in facts:
            number = None if name == "next_offset" else to_number(value)
            facts[name] = value if number is None else number
    return facts
