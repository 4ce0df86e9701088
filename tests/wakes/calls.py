"""The requests of workers over plain HTTP, without the client of semel."""

import http.client
import re
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

_TIMEOUT_SECONDS: Final = 10.0
_PROXY_STATUSES: Final = (502, 503)  # the server is down or unavailable
_OFFSET: Final = re.compile(r"[0-9]{16}_[0-9]{16}")


class Lost(Exception):
    """No complete response was received, so it is unknown whether the request was applied."""


class Answer(NamedTuple):
    """A response, with its JSON if it has some, and the offset after the stream's last message."""

    status: int
    document: Any
    next_offset: str = ""
    content_type: str = ""

    @property
    def code(self) -> str:
        """The code of an error, of `__ds` or of the other addresses, or "" if there is none."""
        found = self.document or {}
        code: str = found.get("error", found).get("code", "")
        return code


class Calls:
    """The requests to one server, each on a connection of its own. None is repeated."""

    def __init__(self, url: str, timeout: float = _TIMEOUT_SECONDS) -> None:
        self._address = urlsplit(url).netloc
        self._timeout = timeout

    def ask(
        self, method: str, target: str, document: Any = None, token: str | None = None
    ) -> Answer:
        """Return the response to a request. Raises Lost."""
        headers = {"Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        body = None if document is None else msgspec.json.encode(document)
        connection = http.client.HTTPConnection(self._address, timeout=self._timeout)
        try:
            connection.request(method, target, body, headers)
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Lost(f"{method} {target}: {error!r}") from error
        finally:
            connection.close()
        if answer.status in _PROXY_STATUSES:
            raise Lost(f"{method} {target}: {answer.status}")
        content_type = answer.getheader("Content-Type") or ""
        is_json = "json" in content_type and text
        return Answer(
            answer.status,
            msgspec.json.decode(text) if is_json else None,
            answer.getheader("Stream-Next-Offset") or "",
            content_type,
        )

    # ---- streams ---------------------------------------------------------------------------------

    def create(self, path: str) -> None:
        """Create a stream of JSON messages, unless it is there."""
        require(self.ask("PUT", f"/v1/stream/{path}"), 200, 201)

    def append(self, path: str, *values: Any) -> None:
        """Append messages to a stream."""
        require(self.ask("POST", f"/v1/stream/{path}", values), 200, 204)

    def tail(self, path: str) -> int:
        """Return the ordinal after the last message of a stream."""
        return ordinal(require(self.ask("HEAD", f"/v1/stream/{path}"), 200).next_offset)

    def read(self, path: str, *, is_committed: bool = False) -> list[Any]:
        """Return all messages of a stream, or only those that are committed."""
        found: list[Any] = []
        at = "-1"
        isolation = "&isolation=read_committed" if is_committed else ""
        while True:
            answer = self.ask("GET", f"/v1/stream/{path}?offset={at}{isolation}")
            if require(answer, 200).next_offset == at:
                return found
            found += answer.document
            at = answer.next_offset

    # ---- subscriptions ---------------------------------------------------------------------------

    def subscribe(self, id: str, config: dict[str, Any]) -> None:
        """Create a subscription, or find it as it was created before."""
        require(self.ask("PUT", subscription(id), config), 200, 201)

    def show(self, id: str) -> dict[str, Any]:
        """Return what the server says about a subscription and its streams."""
        found: dict[str, Any] = require(self.ask("GET", subscription(id)), 200).document
        return found

    def claim(self, id: str, worker: str) -> Answer:
        """Claim the wake of a pull-wake subscription."""
        return self.ask("POST", f"{subscription(id)}/claim", {"worker": worker})

    def ack(self, wake: "Wake", acks: dict[str, int], *, done: bool) -> Answer:
        """Ack streams up to an ordinal."""
        document = {**wake.members, "acks": ack_list(acks), "done": done}
        target = f"{subscription(wake.id)}/{wake.kind}"
        return self.ask("POST", target, document, token=wake.token)

    def release(self, wake: "Wake") -> Answer:
        """Give up a wake that was claimed."""
        target = f"{subscription(wake.id)}/release"
        return self.ask("POST", target, wake.members, token=wake.token)


class Wake(NamedTuple):
    """A wake that a worker has, or had. `kind` is the last word of the address of its acks.

    `streams` has, for each stream, the ordinals from which and up to which there is work.
    """

    id: str
    wake_id: str
    generation: int
    token: str
    kind: str
    streams: dict[str, tuple[int, int]]

    @property
    def members(self) -> dict[str, Any]:
        """The members by which a request names the wake."""
        return {"wake_id": self.wake_id, "generation": self.generation}

    @property
    def tails(self) -> dict[str, int]:
        """The ordinal up to which there is work, for each stream."""
        return {path: tail for path, (_, tail) in self.streams.items()}


def claimed(id: str, answer: Answer) -> Wake:
    """Return the wake in the response to a claim."""
    return _wake(id, answer.document, answer.document["token"], "ack")


def delivered(body: dict[str, Any]) -> Wake:
    """Return the wake in the body of a delivery."""
    return _wake(body["subscription_id"], body, body["callback_token"], "callback")


def _wake(id: str, document: dict[str, Any], token: str, kind: str) -> Wake:
    streams = {
        each["path"]: (ordinal(each["acked_offset"]), ordinal(each["tail_offset"]))
        for each in document["streams"]
        if each["has_pending"]
    }
    return Wake(id, document["wake_id"], document["generation"], token, kind, streams)


def require(answer: Answer, *statuses: int) -> Answer:
    """Return a response that must have one of these statuses."""
    assert answer.status in statuses, answer
    return answer


def subscription(id: str) -> str:
    """Return the address of a subscription."""
    return f"/v1/stream/__ds/subscriptions/{quote(id, safe='')}"


def ack_list(acks: dict[str, int]) -> list[dict[str, str]]:
    """Return acks as requests have them."""
    return [{"stream": path, "offset": offset(at)} for path, at in acks.items()]


def offset(ordinal: int) -> str:
    """Return the offset with this ordinal."""
    return f"{0:016d}_{ordinal:016d}"


def ordinal(offset: str) -> int:
    """Return the ordinal of an offset. That of `-1`, before all messages, is 0."""
    if offset == "-1":
        return 0
    assert _OFFSET.fullmatch(offset), offset
    return int(offset[17:])
