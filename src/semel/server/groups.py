"""The endpoints of `/v1/groups` about whole groups, and about members that share their streams.

A heartbeat writes nothing, unless it releases streams. One that waits is answered when the streams
of its member change, after a while, or when the server ends.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import nsmallest
from time import monotonic
from typing import Final
from zlib import crc32

from msgspec.structs import replace

from semel.broker.engine import Engine
from semel.broker.lag import LagCounter
from semel.broker.memberships import HeartbeatWait
from semel.machine import State
from semel.machine.group_views import (
    Lag,
    MemberView,
    ShareView,
    group_names,
    member_view,
    share_view,
)
from semel.model.errors import EngineStopped
from semel.model.group_commands import DeleteGroup, JoinGroup, LeaveGroup
from semel.model.outcomes import Outcome, Overloaded, Refusal
from semel.model.outcomes_access import Unauthenticated
from semel.model.outcomes_groups import UnknownGroup, UnknownMember
from semel.model.rights import GROUP
from semel.model.steps import Steps
from semel.server.access import Access
from semel.server.admission import send_view
from semel.server.http import Request, Responder, internal_error, problem
from semel.server.metrics import OutcomeCounts
from semel.server.resources import Resource, RouteHandlers, valid
from semel.wire import members, responses, routes
from semel.wire.members import GroupsQuery, Heartbeat
from semel.wire.rendering import Response
from semel.wire.schema.groups import GroupListEntry, GroupsPage

_MEMBER_BYTES: Final = 16
_TURN_SECONDS: Final = 0.002


class MembersResource(Resource):
    """The handlers that list, describe and delete groups, and those for members of groups.

    A heartbeat waits for at most `wait_seconds`.
    """

    def __init__(
        self, engine: Engine, access: Access, tally: OutcomeCounts, *, wait_seconds: float
    ) -> None:
        super().__init__(engine, access, tally)
        self.tally = tally
        self.wait_seconds = wait_seconds
        self.waiting: set[WaitingHeartbeat] = set()
        self.is_draining = False
        self._woken: deque[WaitingHeartbeat] = deque()
        self._loop = asyncio.get_running_loop()

    def handlers(self) -> RouteHandlers:
        return {
            routes.GROUP_LIST: self._list,
            routes.GROUP_DESCRIBE: self._describe,
            routes.GROUP_DELETE: self._delete,
            routes.MEMBER_JOIN: self._join,
            routes.MEMBER_BEAT: self._beat,
            routes.MEMBER_LEAVE: self._leave,
        }

    def drain(self) -> None:
        """Answer all heartbeats that wait, because the server ends."""
        self.is_draining = True
        for heartbeat in list(self.waiting):
            heartbeat.finish()

    def end_uncalled(self) -> None:
        """Refuse the heartbeats that wait and whose callers are no longer valid."""
        for heartbeat in list(self.waiting):
            if not heartbeat.is_called:
                heartbeat.finish()

    def wake(self, heartbeat: "WaitingHeartbeat") -> None:
        """Let a heartbeat look at the state again, on a later turn of the loop.

        The broker calls this while it sends replies. A change of a group wakes all its members, so
        only as many of them look in one turn as fit into a short time.
        """
        self._woken.append(heartbeat)
        if len(self._woken) == 1:
            self._loop.call_soon(self._run_woken)

    def _run_woken(self) -> None:
        ends_at = monotonic() + _TURN_SECONDS
        while self._woken and monotonic() < ends_at:
            self._woken[0].look()
            self._woken.popleft()
        if self._woken:
            self._loop.call_soon(self._run_woken)

    # ---- members ---------------------------------------------------------------------------------

    def _join(self, request: Request, responder: Responder, group: str) -> None:
        member = f"m-{self.engine.clock.random_bytes(_MEMBER_BYTES).hex()}"
        command = members.parse_join(
            group, request.headers, request.body, now_ms=self.now_ms, member=member
        )
        if isinstance(command, JoinGroup) and command.instance is not None:
            memberships = self.engine.broker.memberships
            suspects = memberships.suspects_of_instance(group, command.instance)
            command = replace(command, suspects=suspects)

        def steps_of(_outcome: Outcome, view: MemberView | None) -> Steps[Response]:
            yield from ()
            if isinstance(command, JoinGroup) and command.names_suspects:
                self.engine.broker.memberships.hear(group, member, ())
            if view is None:  # it was replaced by another member with the same instance
                return responses.outcome_response(UnknownMember())
            return members.join_response(self.stamped(view))

        question = partial(member_view, group=group, member=member)
        self.submit_and_ask(valid(command), responder, question, steps_of)

    def stamped(self, view: MemberView) -> MemberView:
        """Return the view with a signature that also changes when an operator moves the group."""
        count = self.engine.broker.memberships.displacements(view.group)
        if not count:
            return view
        signature = crc32(f"{view.signature}-{count}".encode())
        return replace(view, signature=f"{signature:08x}")

    def _beat(self, request: Request, responder: Responder, group: str) -> None:
        beat = valid(members.parse_heartbeat(request.headers, request.body))
        WaitingHeartbeat(self, group, request.detail, beat, responder).start()

    def _leave(self, request: Request, responder: Responder, group: str) -> None:
        command = LeaveGroup(self.now_ms, group, request.detail)
        self.submit(command, responder, responses.outcome_response)

    # ---- groups ----------------------------------------------------------------------------------

    def _list(self, request: Request, responder: Responder, _name: str) -> None:
        query = valid(members.parse_groups_query(request.query))
        caller = responder.caller
        question = partial(
            groups_page, query=query, is_shown=lambda name: self.access.may_see(caller, GROUP, name)
        )
        self.ask(question, responder, partial(responses.json_response, 200))

    def _describe(self, _request: Request, responder: Responder, group: str) -> None:
        self.ask_in_steps(partial(share_view, group=group), responder, self._description)

    def _description(self, view: ShareView | None) -> Steps[Response]:
        if view is None:
            return responses.outcome_response(UnknownGroup())
        broker = self.engine.broker
        counter = LagCounter(broker.durable_view, broker.reader, self.engine.clock.now_ms)
        lags: dict[int, Lag] = {}
        for stream in view.streams:
            if stream.position < stream.end:
                lags[stream.number] = yield from counter.steps(stream)
                yield
        heard = {
            member.id: broker.memberships.heard_ms_ago(view.group, member.id)
            for member in view.members
        }
        return (yield from members.group_steps(view, lags, heard))

    def _delete(self, _request: Request, responder: Responder, group: str) -> None:
        self.submit(DeleteGroup(self.now_ms, group), responder, responses.outcome_response)


def groups_page(state: State, query: GroupsQuery, is_shown: Callable[[str], bool]) -> GroupsPage:
    """Return a page of groups, sorted by name. `is_shown` tells which ones the caller may see."""
    names = group_names(state)
    found = nsmallest(
        query.limit + 1,
        (
            name
            for name in names
            if name > query.after and name.startswith(query.prefix) and is_shown(name)
        ),
    )
    entries = [_entry_of(state, name) for name in found[: query.limit]]
    return GroupsPage(entries, found[query.limit - 1] if len(found) > query.limit else None)


def _entry_of(state: State, group: str) -> GroupListEntry:
    share = state.shares.get(group)
    members_count = 0 if share is None else len(share.members)
    paths = set(state.groups.get(group, ()))
    if share is not None:
        paths.update(state.by_number[number].row.path for number in share.streams)
    return GroupListEntry(group, members_count, len(paths))


class WaitingHeartbeat:
    """One heartbeat, until it is answered.

    It is answered at once if the state of the member is not the one that the member knows.
    """

    def __init__(
        self,
        resource: MembersResource,
        group: str,
        member: str,
        heartbeat: Heartbeat,
        responder: Responder,
    ) -> None:
        self._resource = resource
        self._engine = resource.engine
        self._group = group
        self._member = member
        self._heartbeat = heartbeat
        self._responder = responder
        self._wait: HeartbeatWait | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last: MemberView | None = None
        self._is_over = False

    @property
    def is_called(self) -> bool:
        """True while the caller is valid."""
        return self._resource.access.is_live(self._responder.caller)

    def start(self) -> None:
        """Record that the member was heard, release its streams, and answer or wait."""
        self._responder.on_gone(self._end)
        now_ms = self._resource.now_ms
        endings = self._engine.broker.endings
        suspects = self._heartbeat.suspects
        self._engine.do(lambda: endings.hear(self._group, self._member, now_ms, suspects))
        if self._heartbeat.released:
            command = members.release_of(
                self._group,
                self._member,
                self._heartbeat,
                now_ms=self._resource.now_ms,
            )
            self._resource.access.submit(command, self._released, self._responder.caller)
            return
        self._ask()

    def _released(self, outcome: Outcome) -> None:
        self._resource.tally.note(outcome)
        if isinstance(outcome, Refusal):
            self._send(responses.outcome_response(outcome))
            return
        try:
            self._ask()
        except EngineStopped:  # the streams are released, but the server ends
            self._send(problem(internal_error()))

    def _ask(self) -> None:
        question = partial(member_view, group=self._group, member=self._member)
        self._engine.ask(question, self._take)

    def _take(self, view: MemberView | None) -> None:
        if self._is_over:
            return
        if view is not None:
            view = self._resource.stamped(view)
        if not self.is_called:
            self._send(responses.outcome_response(Unauthenticated()))
        elif view is None:
            self._send(responses.outcome_response(UnknownMember()))
        elif view.signature != self._heartbeat.version or not self._may_wait(view):
            self._send(members.heartbeat_response(view))
        else:
            self._last = view
            self._wait_for_change(view)

    def _may_wait(self, view: MemberView) -> bool:
        """Return True if the heartbeat may wait for a change. Start the timer if there is none."""
        if self._resource.is_draining:
            return False
        if self._timer is None:
            # The member must be heard again before its session times out.
            every_ms = members.heartbeat_every_ms(view.member.session_timeout_ms)
            seconds = min(self._heartbeat.wait_ms, every_ms) / 1000
            seconds = min(seconds, self._resource.wait_seconds)
            if seconds <= 0:
                return False
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self.finish)
        return True

    def _wait_for_change(self, view: MemberView) -> None:
        # Without a limit, the view does not depend on the positions of the group.
        has_limits = any(each.limit is not None for each in view.assigned)
        memberships = self._engine.broker.memberships
        self._wait = memberships.wait(self._group, self._wake, has_limits=has_limits)
        if self._wait is None:
            self._send(responses.outcome_response(Overloaded()))
            return
        self._resource.waiting.add(self)

    def _wake(self) -> None:
        self._wait = None
        self._resource.wake(self)

    def look(self) -> None:
        """Look at the state again, because it has perhaps changed."""
        if self._is_over:
            return
        try:
            self._ask()
        except EngineStopped:
            self.finish()

    def finish(self) -> None:
        """Answer with the state that the member knows already."""
        if self._is_over or self._last is None:
            return
        if self.is_called:
            self._send(members.heartbeat_response(self._last))
        else:
            self._send(responses.outcome_response(Unauthenticated()))

    def _send(self, response: Response) -> None:
        self._end()
        send_view(self._responder, response)

    def _end(self) -> None:
        self._is_over = True
        self._resource.waiting.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._wait is not None:
            self._engine.broker.memberships.stop_waiting(self._wait)
            self._wait = None
