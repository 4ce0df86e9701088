"""The calls on a topic. They build requests and interpret responses, but do no I/O.

A topic is a set of streams, its partitions. `TopicCalls` has the same calls for appends as a
stream, so that plain appends, producers and transactions write to a topic as they write to a
stream. What is different:

1. The client groups messages by partition, and sends for how many partitions and with what
   partitioner it did so. If the topic has another number, or another topic with its name has
   another partitioner, nothing is stored, and the client groups and sends them again.
2. A repeat of a request that may have been stored has the same groups, even if the topic has
   changed: the server first looks for the repeat, and then compares the groups.
3. With an idempotency key, the server groups, because the same call can be repeated after the topic
   has grown, and must then be recognised.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from semel.client import errors
from semel.client.addresses import STREAM_PATH, Address, StreamPlace, checked_path
from semel.client.extras import Extras, milliseconds
from semel.client.flows import Exchanged, Flow, Pause, RetrySafety, backoff_seconds
from semel.client.grouping import Grouper, check_partition
from semel.client.requests import AppendHeaders, Fields, Request, query, ttl_seconds
from semel.client.response_parser import Response
from semel.client.server_calls import ask_server, decoded, get, require_progress
from semel.client.stream_calls import (
    NO_EXTRAS,
    SWITCHES,
    DedupKnowledge,
    ServerConfig,
    StreamCalls,
    encode_body,
)
from semel.client.topic_values import TopicInfo, TopicReceipt
from semel.client.values import START, Receipt, StreamInfo, encode
from semel.model.messages import JSON_MEDIA_TYPE, normalise
from semel.model.offsets import print_offset
from semel.wire.headers import TOPIC_BATCH, print_instant, read_flag
from semel.wire.paths import TOPICS, stream_url
from semel.wire.schema.topics import TopicPart, TopicsPage

_JSON: Final = (("Content-Type", JSON_MEDIA_TYPE),)
_LISTING_COUNT: Final = 1_000
_GROWTH_SECONDS_MIN: Final = 0.01  # between two attempts to grow beside transactions
_GROWTH_SECONDS_MAX: Final = 0.1
_REGROUPINGS_MAX: Final = 20  # a topic does not grow so often during one call


class AppendAnswer(Struct, frozen=True):
    """The response to an append. `parts` is None if the offsets are not known."""

    duplicate: bool = False
    parts: tuple[TopicPart, ...] | None = None


class TopicConfig(Struct, frozen=True):
    """The configuration of a new topic.

    The content type is JSON by default. Any other field that is None is left to the server.
    """

    partitions: int
    content_type: str | None = None
    partitioner: str | None = None
    ttl: int | timedelta | None = None
    expires_at: datetime | None = None
    dedup: bool | None = None

    @property
    def document(self) -> dict[str, Any]:
        """The JSON document of the request. Raises ValueError if the ttl or the time is invalid."""
        moment = self.expires_at
        members = {
            "partitions": self.partitions,
            "content_type": self.content_type or JSON_MEDIA_TYPE,
            "partitioner": self.partitioner,
            "ttl_seconds": None if self.ttl is None else ttl_seconds(self.ttl),
            "expires_at": None if moment is None else print_instant(milliseconds(moment)),
            "dedup": None if self.dedup is None else ("off", "on")[self.dedup],
        }
        return {name: value for name, value in members.items() if value is not None}

    def conflict(self, info: TopicInfo) -> str | None:
        """Return the field in which an existing topic is not what the caller wants, or None.

        A topic with more partitions is fine, because it may have grown.
        """
        if info.partition_count < self.partitions:
            return "partitions"
        wanted = self.content_type
        if wanted is not None and normalise(wanted) != normalise(info.content_type):
            return "content_type"
        return None if self.partitioner in (None, info.partitioner) else "partitioner"


class TopicCalls(StreamCalls):
    """The calls on one topic, and what the last responses have shown about the topic.

    `path` is the topic's name. If `wanted` is not None, the first use creates the topic if it is
    missing.
    """

    def __init__(self, site: ServerConfig, name: str, wanted: TopicConfig | None = None) -> None:
        place = StreamPlace(site.address, _target(site.address, name), name)
        super().__init__(site, name, place)
        self.wanted = wanted
        self._appended: str | None = None  # as `stream_info` returns it

    # ---- the topic as a whole --------------------------------------------------------------------

    def create_topic(self, config: TopicConfig, *, exist_ok: bool = False) -> Flow[TopicInfo]:
        """Create the topic.

        If it already exists with the same configuration, StreamExists is raised, unless `exist_ok`
        is True. Then a topic with more partitions is accepted, too. If it exists with any other
        configuration, TopicConflict is raised.
        """
        while True:
            request = Request("PUT", self.target, _JSON, msgspec.json.encode(config.document))
            exchange = yield from self._ask(request, RetrySafety.REPEATABLE)
            response = exchange.response
            if response.status < 400:
                info = self._learn_topic(exchange.expect(200, 201))
                # If the status is 200 after an attempt without a response, that attempt has
                # created the topic.
                if response.status == 200 and not exchange.was_lost and not exist_ok:
                    raise errors.StreamExists(f"the topic {self.path} already exists", status=200)
                self.wanted = None
                return info
            error = exchange.error()
            is_about_count = isinstance(error, errors.TopicConflict) and error.field == "partitions"
            if not (exist_ok and is_about_count):
                raise error
            count = (yield from self._get()).partition_count
            if count <= config.partitions:
                raise error
            # The same request with the present number shows whether anything else is different.
            config = replace(config, partitions=count)

    def show(self) -> Flow[TopicInfo]:
        """Return the state of the topic. If it is missing and the caller wants it, create it."""
        wanted = self.wanted
        if wanted is None:
            return (yield from self._get())
        try:
            info = yield from self._get()
        except errors.TopicNotFound:
            try:
                info = yield from self.create_topic(wanted)
            except (errors.TopicConflict, errors.StreamExists):
                info = yield from self._get()  # another client has created it meanwhile
        field = wanted.conflict(info)
        if field is not None:
            found = info.partition_count if field == "partitions" else getattr(info, field)
            raise errors.TopicConflict(
                f"the topic {self.path} already exists with a different {field}: {found}",
                status=409,
                facts={"field": field},
            )
        self.wanted = None
        return info

    def head(self) -> Flow[StreamInfo]:
        """Return what an append must know about the topic. See `show`."""
        return stream_info((yield from self.show()))

    def exists(self) -> Flow[bool]:
        """Return True if the topic exists."""
        try:
            yield from self._get()
        except (errors.TopicNotFound, errors.StreamGone):
            return False
        return True

    def change(self, **members: Any) -> Flow[TopicInfo]:
        """Change the topic, and return its new state."""
        if self.wanted is not None:
            yield from self.show()
        request = Request("PATCH", self.target, _JSON, msgspec.json.encode(members))
        exchange = yield from self._ask(request, RetrySafety.REPEATABLE)
        return self._learn_topic(exchange.expect(200))

    def grow(self, partitions: int, *, keys_may_move: bool = False) -> Flow[TopicInfo]:
        """Give the topic more partitions, and return its new state.

        A staged transaction with messages for the topic prevents that until it has ended. Raises
        StreamInTransaction if that is not before the call's timeout.
        """
        members: dict[str, Any] = {"partitions": partitions}
        if keys_may_move:
            members["keys_may_move"] = True
        refusals = 0
        while True:
            try:
                return (yield from self.change(**members))
            except errors.StreamInTransaction:
                seconds = backoff_seconds(refusals, _GROWTH_SECONDS_MIN, _GROWTH_SECONDS_MAX)
                if not (yield Pause(seconds, seconds)):
                    raise
            refusals += 1

    def delete(self) -> Flow[None]:
        """Delete the topic with all its partitions."""
        exchange = yield from self._ask(Request("DELETE", self.target), RetrySafety.REPEATABLE)
        self.content_type = self.wanted = None
        if not (exchange.was_lost and exchange.response.status == 404):
            exchange.expect(204)

    def _get(self) -> Flow[TopicInfo]:
        exchange = yield from self._ask(Request("GET", self.target), RetrySafety.READ)
        if exchange.response.status >= 400:
            self.is_stale = True
        return self._learn_topic(exchange.expect(200))

    def _learn_topic(self, response: Response) -> TopicInfo:
        info = decoded(response, TopicInfo)
        if self.grouper is None:
            self.grouper = Grouper(info.partitioner, info.partition_count)
        else:
            self.grouper.learn(info.partition_count, info.partitioner)
        common = stream_info(info)
        self._learn(common)
        self._appended = common.next_offset
        return info

    def _ask(self, request: Request, kind: RetrySafety) -> Flow[Exchanged]:
        return ask_server(self.site, request, kind, stream=self.path)

    # ---- appending -------------------------------------------------------------------------------

    def known(self) -> DedupKnowledge:
        """Return what is known about the topic. It has no offsets of its own."""
        return DedupKnowledge(self.incarnation, self.dedup_from, self._appended, is_topic=True)

    def known_type(self, given: str | None = None) -> Flow[str]:
        """Return `given`, or the topic's media type. Learn the number of partitions, too."""
        if self.content_type is None or self.is_stale or self.wanted is not None:
            yield from self.show()
        assert self.content_type is not None
        return given or self.content_type

    def append(
        self,
        values: Sequence[Any],
        conditions: AppendHeaders,
        extras: Extras = NO_EXTRAS,
        partition: int | None = None,
    ) -> Flow[Receipt]:
        """Append messages. Either all of the messages are stored, or none of them.

        With `partition`, all messages go to this partition.
        """
        if not values:
            raise ValueError("there is nothing to append; pass at least one message")
        check_partition(partition)
        content_type = yield from self.known_type()
        refusal: errors.Refused | None = None
        for _ in range(_REGROUPINGS_MAX):
            messages = self._messages(values, content_type)
            if conditions.idempotency_key is not None:
                body_type, body = encode_body(messages, content_type, extras)
                field = partition_field(partition)
                return (yield from self.post(body_type, body, conditions, field))
            chosen = None if partition is None else [partition] * len(messages)
            assert self.grouper is not None
            grouped = self.grouper.group(content_type, messages, extras, chosen)
            try:
                return (yield from self.post(TOPIC_BATCH, grouped.body, conditions, grouped.fields))
            except errors.PartitionsChanged as error:
                self.grouper.note_refusal(error, grouped)
                refusal = error
            except errors.ContentTypeConflict as error:
                previous = content_type
                content_type = (yield from self.head()).content_type
                if normalise(content_type) == normalise(previous):
                    raise
                refusal = error
        assert refusal is not None
        raise refusal

    def _messages(self, values: Sequence[Any], content_type: str) -> list[bytes]:
        try:
            return [encode(value, content_type) for value in values]
        except (TypeError, ValueError):
            self.is_stale = True
            raise

    def receipt(self, response: Response, conditions: AppendHeaders) -> Receipt:
        """Return the receipt for a successful append. Raises ProtocolError if it is invalid."""
        return receipt_of_answer(decoded(response, AppendAnswer), response)


def receipt_of_answer(answer: AppendAnswer, response: Response) -> TopicReceipt:
    """Return the receipt of an append to a topic."""
    parts = answer.parts or ()
    return TopicReceipt(
        parts[0].next_offset if len(parts) == 1 else None,
        answer.duplicate,
        mismatch=read_flag(response.headers, "producer-payload-mismatch"),
        parts=parts,
    )


def partition_field(partition: int | None) -> Fields:
    """Return the header that selects the partition of all messages of a request."""
    return () if partition is None else (("Stream-Partition", str(partition)),)


def stream_info(info: TopicInfo) -> StreamInfo:
    """Return what a topic has in common with a stream.

    A topic has no offsets. In their place, the result has the number of messages appended to it: in
    `next_offset` the present one, and in `dedup_from` that from which on duplicates are recognised.
    `stable_offset` is equal to `next_offset` if no transaction has messages in the partitions.
    """
    appended = print_offset(info.appended)
    return StreamInfo(
        info.content_type,
        appended,
        info.closed,
        incarnation=info.incarnation,
        dedup=info.dedup.lower() != "off",
        dedup_from=print_offset(info.dedup_from) if info.dedup_from else None,
        stable_offset=appended if info.is_settled else START,
        dedup_source=info.dedup_source,
        dedup_policy=info.dedup_policy,
        dedup_pending=SWITCHES.get((info.dedup_pending or "").lower()),
    )


def _target(address: Address, name: str) -> str:
    """Return the request target of a topic. Raises ValueError if the name is invalid."""
    escaped = stream_url("", checked_path(name)).removeprefix(STREAM_PATH)
    return f"{address.prefix}{TOPICS}{escaped}"


def list_topics(
    site: ServerConfig, prefix: str, after: str | None, limit: int = _LISTING_COUNT
) -> Flow[TopicsPage]:
    """Return one page of the list of topics whose names begin with `prefix`.

    The page begins after the name `after` and has at most `limit` topics.
    """
    parameters = query(prefix=prefix or None, after=after, limit=limit)
    page = yield from get(site, site.address.target(TOPICS) + parameters, TopicsPage)
    require_progress(page.next, after)
    return page
