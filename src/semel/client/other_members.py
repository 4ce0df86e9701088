"""What a member of a group waits for when it has read all its streams.

Streams of other members can still come to it: those that are about to be released, and those of a
member that has crashed, which the server gives to others when its session has timed out. A member
that is alive processes its streams itself, so nobody waits for these.
"""

from collections.abc import Callable, Container
from typing import Final
from weakref import WeakValueDictionary

from semel.client.flows import Flow
from semel.client.member_calls import GroupInfo, GroupStream, Member, describe_group
from semel.client.stream_calls import ServerConfig
from semel.client.transport import ProcessOwner
from semel.model.rights import retries_of

_FREE: Final = ("free", "revoking")


class LivingMembers:
    """The members of this process, which are alive as long as their heartbeats are sent."""

    def __init__(self) -> None:
        self._owner = ProcessOwner("the members")
        self._members: WeakValueDictionary[str, Member] = WeakValueDictionary()

    def add(self, member: Member) -> None:
        """Add a member that has joined its group."""
        self._reset()
        self._members[member.id] = member

    def remove(self, member: Member) -> None:
        """Remove a member that has expired or leaves its group."""
        self._members.pop(member.id, None)

    def __contains__(self, member: object) -> bool:
        self._reset()
        return member in self._members

    def _reset(self) -> None:
        """Forget the members that a forked process has inherited from its parent."""
        if self._owner.is_parent:
            self._owner.adopt()
            self._members.clear()


LIVING: Final = LivingMembers()


class LastWait:
    """The wait of a member for streams of other members, after it has read all its own."""

    def __init__(
        self, site: ServerConfig, group: str, clock: Callable[[], float], *, is_live: bool
    ) -> None:
        self._site = site
        self._group = group
        self._clock = clock
        self._is_live = is_live
        self._since: float | None = None  # when the wait began

    def is_over(
        self, member: Member, own: Container[str], is_wanted: Callable[[str], bool]
    ) -> Flow[bool]:
        """Return True if no stream in which something is left to read can come to the member.

        `own` has the paths of its streams, in which it has read everything that it knows of.
        """
        asked = self._clock()
        if self._since is None:
            self._since = asked
        info = yield from describe_group(self._site, self._group)
        heard = _heard(info, asked - self._since)
        return not any(
            self._is_waited_for(each, member, heard)
            for each in info.streams
            if each.stream not in own and each.lag != 0 and each.lag_bound
            if each.owner == member.id or is_wanted(each.stream)
        )

    def _is_waited_for(
        self, stream: GroupStream, member: Member, heard: Container[str | None]
    ) -> bool:
        if stream.owner == member.id or stream.phase in _FREE:
            return True
        if self._is_live:  # the inputs are closed, so all are waited for until they are processed
            return stream.stream != retries_of(self._group)
        return stream.owner not in LIVING and stream.owner not in heard


def _heard(info: GroupInfo, seconds: float) -> set[str | None]:
    """Return the members that were heard in the last seconds before the request."""
    return {
        each.member
        for each in info.members
        if each.heard_ms_ago is not None and each.heard_ms_ago < seconds * 1000
    }
