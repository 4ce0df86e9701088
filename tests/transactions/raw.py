"""The calls of a worker of a group over plain HTTP, without the client of semel."""

import http.client
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from semel.model.offsets import parse_offset, print_offset

_TIMEOUT_SECONDS: Final = 5.0
_PROXY_STATUSES: Final = (502, 503)  # the server is down or unavailable
_JSON: Final = {"Content-Type": "application/json"}


class Lost(Exception):
    """No complete response was received, so it is unknown whether the request was applied."""


class RefusedCall(Exception):
    """The server refused the request; `code` is the error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code: Final = code

    @property
    def is_conflict(self) -> bool:
        """Whether the request conflicts with another worker."""
        return self.code in ("position_conflict", "unstable_offsets")

    @property
    def is_abort(self) -> bool:
        """Whether the transaction was aborted, by any client or by its timeout."""
        return self.code in ("txn_aborted", "TRANSACTION_TIMED_OUT")


class Position(NamedTuple):
    """The offset of a group in a stream, and its version: the number of moves so far."""

    offset: int
    version: int


class Page(NamedTuple):
    """Messages of a stream from an offset on, and the incarnation of the stream."""

    values: list[Any]
    incarnation: str
    is_closed: bool


class Line:
    """One connection, opened when needed. A request without a response is repeated."""

    def __init__(self, url: str, tries: int = 3) -> None:
        self._address = urlsplit(url).netloc
        self._tries = tries
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(
        self, method: str, target: str, document: Any = None, **fields: Any
    ) -> tuple[Mapping[str, str], bytes]:
        """Return the headers and body of the response; raise Lost or RefusedCall on failure."""
        body = None if document is None else msgspec.json.encode(document)
        headers = {name.replace("_", "-"): str(value) for name, value in fields.items()}
        for _ in range(self._tries):
            answer = self._once(method, target, body, {**_JSON, **headers})
            if answer is None:
                continue
            status, found, text = answer
            if status < 400:
                return found, text
            problem = msgspec.json.decode(text)
            raise RefusedCall(problem["code"], problem["message"])
        raise Lost(f"{method} {target}")

    def _once(
        self, method: str, target: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, Mapping[str, str], bytes] | None:
        connection = self._connection or http.client.HTTPConnection(
            self._address, timeout=_TIMEOUT_SECONDS
        )
        self._connection = connection
        try:
            connection.request(method, target, body, headers)
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException):
            self.close()
            return None
        if answer.status in _PROXY_STATUSES:
            return None
        return answer.status, dict(answer.headers), text


# ---- reading for a group -------------------------------------------------------------------------


def positions_of(line: Line, group: str, *, is_stable: bool) -> dict[str, Position]:
    """Return the position of a group by stream. A stable read may be refused."""
    query = "?stable=true" if is_stable else ""
    _, body = line.ask("GET", f"/v1/groups/{group}/offsets{query}")
    found = msgspec.json.decode(body)
    return {
        stream: Position(parse_offset(offset) or 0, found["versions"][stream])
        for stream, offset in found["offsets"].items()
    }


def read_page(line: Line, stream: str, start: int) -> Page:
    """Return the messages from an offset up to the end of the page."""
    target = f"/v1/stream/{stream}?offset={print_offset(start)}&isolation=read_committed"
    headers, body = line.ask("GET", target)
    is_closed = headers.get("Stream-Closed") == "true"
    return Page(msgspec.json.decode(body), headers["Stream-Incarnation"], is_closed)


# ---- transactions --------------------------------------------------------------------------------


class RawTransaction:
    """A transaction of a producer whose id is not used elsewhere."""

    def __init__(self, line: Line, id: str, producer_id: str, kind: str, seconds: float) -> None:
        self._line = line
        self._id = id
        self._kind = kind
        self._timeout_ms = round(seconds * 1000)
        self._owner = {"producer_id": producer_id, "producer_epoch": 0}
        self._epoch = 0
        self._next: dict[str, int] = {}

    def begin(self) -> None:
        """Begin the transaction, which may write to any stream."""
        document = {
            **self._owner,
            "transaction_id": self._id,
            "kind": self._kind,
            "timeout_ms": self._timeout_ms,
            "streams": [],
            "implicit": True,
        }
        _, body = self._line.ask("POST", "/v1/transactions", document)
        self._epoch = msgspec.json.decode(body)["transaction_epoch"]

    def append(self, stream: str, values: list[Any]) -> None:
        """Append messages with the next sequence of the stream or of the staged transaction."""
        self._post(f"/v1/stream/{stream}", stream, values)

    def _post(self, target: str, stream: str, values: list[Any], **fields: str) -> None:
        mine: dict[str, Any] = {"transaction_id": self._id, "transaction_epoch": self._epoch}
        name = "" if self._kind == "staged" else stream
        seq = self._next.get(name, 0)
        if self._kind == "staged":
            mine["transaction_seq"] = seq
        else:
            mine |= {**self._owner, "producer_seq": seq}
        self._line.ask("POST", target, values, **mine, **fields)
        self._next[name] = seq + 1

    def move(self, group: str, stream: str, position: Position, to: int, incarnation: str) -> None:
        """Add a move of a group, from the position that was read, to the transaction."""
        move = {
            "from": print_offset(position.offset),
            "to": print_offset(to),
            "incarnation": incarnation,
            "version": position.version,
        }
        self._call("offsets", {"group": group, "offsets": {stream: move}})

    def prepare(self) -> None:
        self._call("prepare", {})

    def commit(self) -> None:
        self._call("commit", {})

    def abort(self) -> None:
        self._call("abort", {})

    def _call(self, action: str, document: dict[str, Any]) -> None:
        whole = {**self._owner, "transaction_epoch": self._epoch, **document}
        self._line.ask("POST", f"/v1/transactions/{self._id}/{action}", whole)
