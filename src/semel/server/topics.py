"""The endpoints of `/v1/topics`: create, show, change, delete and list topics, and append to them.

A response that shows state is sent only after that state has become durable (rule EO-4).
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from msgspec import Struct

from semel.broker.broker import Reply
from semel.broker.engine import Engine
from semel.machine import State
from semel.machine.policies import dedup_source
from semel.machine.rows import StreamRow, TailRow, TopicRow
from semel.machine.state import Stream
from semel.machine.topics import find_topic, partitions_of
from semel.model.offsets import print_offset
from semel.model.outcomes import Outcome, Refusal
from semel.model.outcomes_topics import TopicCreated, TopicGrown, TopicStored
from semel.model.policies import DedupSource
from semel.model.rights import Caller
from semel.model.steps import STEP_BYTES, STEP_ROWS, Steps
from semel.model.topic_commands import AppendTopic, DeleteTopic
from semel.server.access import Access
from semel.server.admission import send_response
from semel.server.http import Request, Responder
from semel.server.listings import parse_page_query, topics_page
from semel.server.metrics import APPENDED, OutcomeCounts
from semel.server.resources import Resource, RouteHandlers, in_steps, valid
from semel.wire import responses, routes
from semel.wire.headers import print_instant
from semel.wire.paths import topic_url
from semel.wire.policies import print_switch
from semel.wire.problems import MalformedRequest, Problem
from semel.wire.rendering import Response
from semel.wire.schema.topics import GrowthEntry, PartitionEntry, TopicDocument
from semel.wire.topics import (
    TopicPlan,
    parse_topic_patch,
    parse_topic_put,
    plan_topic_post,
    stale_leader,
    topic_append_lines,
    topic_append_of,
    topic_append_response,
    topic_append_steps,
    topic_response,
)

_INCARNATION_BYTES: Final = 8
SubmitAppend = Callable[[AppendTopic, Reply, Caller | None], None]


class TopicView(Struct, frozen=True):
    """A topic and its partitions, as they were when the state was asked. The rows do not change.

    `source` is where the topic's setting for duplicates comes from.
    """

    row: StreamRow
    tail: TailRow
    topic: TopicRow
    partitions: tuple[tuple[StreamRow, TailRow], ...]
    source: DedupSource


class TopicsResource(Resource):
    """The handlers that create, show, change, delete and list topics, and append to them."""

    def __init__(
        self,
        engine: Engine,
        access: Access,
        tally: OutcomeCounts,
        *,
        submit_append: SubmitAppend,
        fresh_id: Callable[[], str],
        origin_of: Callable[[Request], str],
        is_strict: bool,
    ) -> None:
        super().__init__(engine, access, tally)
        self._outcomes = tally
        self._submit_append = submit_append
        self._fresh_id = fresh_id
        self._origin_of = origin_of
        self._is_strict = is_strict

    def handlers(self) -> RouteHandlers:
        return {
            routes.TOPIC_SHOW: self._show,
            routes.TOPIC_APPEND: self._post,
            routes.TOPIC_CREATE: self._create,
            routes.TOPIC_CHANGE: self._change,
            routes.TOPIC_DELETE: self._delete,
            routes.TOPIC_LIST: self._list,
        }

    # ---- topics as a whole -----------------------------------------------------------------------

    def _show(self, _request: Request, responder: Responder, name: str) -> None:
        self.ask_in_steps(partial(topic_view, name=name), responder, _topic_steps, name)

    def _create(self, request: Request, responder: Responder, name: str) -> None:
        command = parse_topic_put(
            name,
            request.headers,
            request.body,
            now_ms=self.now_ms,
            incarnation=self._fresh_incarnation(),
        )
        location = topic_url(self._origin_of(request), name)

        def steps_of(outcome: Outcome, view: TopicView | Refusal) -> Steps[Response]:
            is_new = isinstance(outcome, TopicCreated) and outcome.is_new
            return _topic_steps(view, status=201 if is_new else 200, location=location)

        self.submit_and_ask(valid(command), responder, partial(topic_view, name=name), steps_of)

    def _change(self, request: Request, responder: Responder, name: str) -> None:
        command = parse_topic_patch(
            name,
            request.headers,
            request.body,
            now_ms=self.now_ms,
            incarnation=self._fresh_incarnation(),
        )
        if isinstance(command, Problem):
            raise MalformedRequest(command)

        def steps_of(outcome: Outcome, view: TopicView | Refusal) -> Steps[Response]:
            grown = outcome if isinstance(outcome, TopicGrown) else None
            return _topic_steps(view, grown=grown)

        self.submit_and_ask(command, responder, partial(topic_view, name=name), steps_of)

    def _delete(self, _request: Request, responder: Responder, name: str) -> None:
        self.submit(DeleteTopic(name, self.now_ms), responder, responses.outcome_response)

    def _list(self, request: Request, responder: Responder, _name: str) -> None:
        question = partial(
            topics_page,
            view=self.engine.durable_view,
            page=parse_page_query(request.query),
            caller=responder.caller,
        )
        self.ask(question, responder, partial(responses.json_response, 200))

    def _fresh_incarnation(self) -> str:
        return self.engine.clock.random_bytes(_INCARNATION_BYTES).hex()

    # ---- appends ---------------------------------------------------------------------------------

    def _post(self, request: Request, responder: Responder, name: str) -> None:
        plan = valid(
            plan_topic_post(
                name,
                request.headers,
                request.repeated,
                is_strict=self._is_strict,
                fresh_id=self._fresh_id,
            )
        )
        if plan.is_named:  # this plan fits every request with this head
            request.head.topic_plan = plan
        self.append(plan, request, responder, responder.caller)

    def append(
        self, plan: TopicPlan, request: Request, responder: Responder, caller: Caller | None
    ) -> None:
        """Submit the append of a request whose headers have this plan. Raises MalformedRequest."""
        if plan.leader_epoch not in (None, self.engine.generation):
            raise MalformedRequest(stale_leader(self.engine.generation))
        if len(request.body) > STEP_BYTES and not plan.is_opaque:
            steps = self._append_in_steps(plan, request, responder, caller)
            responder.run(in_steps(steps, responder))
            return
        command = topic_append_of(
            plan,
            request.body,
            now_ms=self.engine.clock.now_ms(),
            seq=request.seq,
            message_key=request.message_key,
        )
        self._append_command(plan, command, responder, caller)

    def _append_in_steps(
        self, plan: TopicPlan, request: Request, responder: Responder, caller: Caller | None
    ) -> Iterator[None]:
        command = yield from topic_append_steps(
            plan,
            request.body,
            now_ms=self.now_ms,
            seq=request.seq,
            message_key=request.message_key,
        )
        self._append_command(plan, command, responder, caller)

    def _append_command(
        self, plan: TopicPlan, command: AppendTopic, responder: Responder, caller: Caller | None
    ) -> None:
        tally = self._outcomes
        # The count with which the append is decided. A growth after it might not be durable yet
        # when the response is sent.
        stream = self.engine.stream(plan.name)
        topic = None if stream is None else stream.topic
        partitions = None if topic is None else len(topic.partitions)

        def reply(outcome: Outcome) -> None:  # a closure is faster than an object for each append
            if plan.is_common and partitions is not None and type(outcome) is TopicStored:
                parts = outcome.parts
                is_plain = not (outcome.is_duplicate or outcome.is_unguarded)
                if is_plain and parts is not None and len(parts) == 1:
                    tally.outcomes[APPENDED] += 1
                    lines, body = topic_append_lines(outcome, parts[0], plan, partitions)
                    responder.send_lines(200, lines, body)
                    return
            tally.note(outcome)
            response = topic_append_response(
                outcome, command, is_named=plan.is_named, partitions=partitions
            )
            send_response(responder, response)

        self._submit_append(command, reply, caller)


# ---- documents of the state ----------------------------------------------------------------------


def topic_view(state: State, name: str) -> TopicView | Refusal:
    """Return a topic with its partitions, or a refusal if there is none."""
    topic = find_topic(state, name)
    if not isinstance(topic, Stream):
        return topic
    assert topic.topic is not None
    partitions = tuple((each.row, each.tail) for each in partitions_of(state, topic))
    source = dedup_source(state.policies, topic.row.path, topic.tail)
    return TopicView(topic.row, topic.tail, topic.topic, partitions, source)


def _topic_steps(
    view: TopicView | Refusal,
    *,
    status: int = 200,
    location: str | None = None,
    grown: TopicGrown | None = None,
) -> Steps[Response]:
    """Return the response with a topic, in steps, or with a refusal."""
    if not isinstance(view, TopicView):
        return responses.outcome_response(view)
    growths: list[GrowthEntry] = []
    unpaused_rows = len(view.partitions)
    for fence in view.topic.fences:
        growths.append(GrowthEntry(len(fence), list(map(print_offset, fence))))
        unpaused_rows += len(fence)
        if unpaused_rows > STEP_ROWS:
            unpaused_rows = 0
            yield
    row, tail, source = view.row, view.tail, view.source
    document = TopicDocument(
        topic=row.path,
        partitions=[_partition_entry(*each) for each in view.partitions],
        partition_count=len(view.partitions),
        partitioner=view.topic.partitioner,
        content_type=row.content_type,
        incarnation=row.incarnation,
        keyed=view.topic.is_keyed,
        closed=tail.is_closed,
        created_at_ms=row.created_ms,
        appended=tail.tail,
        dedup=print_switch(tail.dedup_from is not None),
        dedup_from=tail.dedup_from,
        dedup_source=source.name,
        dedup_policy=source.prefix,
        dedup_pending=None if source.pending is None else print_switch(source.pending),
        growths=growths,
        ttl_seconds=None if row.ttl_ms is None else row.ttl_ms // 1000,
        expires_at=None if row.expires_at_ms is None else print_instant(row.expires_at_ms),
    )
    return topic_response(document, status=status, source=source, location=location, grown=grown)


def _partition_entry(row: StreamRow, tail: TailRow) -> PartitionEntry:
    return PartitionEntry(
        partition=row.partition,
        stream=row.path,
        incarnation=row.incarnation,
        first_offset=print_offset(tail.head),
        next_offset=print_offset(tail.tail),
        stable_offset=print_offset(tail.stable),
        closed=tail.is_closed,
    )
