"""The outcomes of commands on groups whose members share work."""

from semel.model.outcomes import Outcome, Refusal


class Joined(Outcome, frozen=True, gc=False):
    """The member has joined the group. Its streams are in the view of the member."""

    group: str
    member: str


class Released(Outcome, frozen=True, gc=False):
    """The streams that the member still owned are released."""


class Left(Outcome, frozen=True, gc=False):
    """The member is no longer in the group."""


class Rebalanced(Outcome, frozen=True, gc=False):
    """The assignment of the group is up to date."""


class GroupDeleted(Outcome, frozen=True, gc=False):
    """The group and its positions are deleted."""


# ---- refused -------------------------------------------------------------------------------------


class UnknownGroup(Refusal, frozen=True, gc=False):
    """There is no such group: it has no positions, no members and no pinned step."""

    code = "group_not_found"


class UnknownMember(Refusal, frozen=True, gc=False):
    """The group has no such member. It has left, was replaced, or its session has timed out."""

    code = "unknown_member"


class IllegalGeneration(Refusal, frozen=True, gc=False):
    """The member does not own the stream at this epoch, so it cannot move the position.

    `epoch` is the epoch of the present owner, or of the last one if nobody owns the stream.
    """

    code = "ILLEGAL_GENERATION"
    group: str
    path: str
    epoch: int
    received_epoch: int | None = None


class GroupIsShared(Refusal, frozen=True, gc=False):
    """A member of the group owns the stream, so nobody else can move the position."""

    code = "group_is_shared"
    group: str
    path: str


class GroupInUse(Refusal, frozen=True, gc=False):
    """The group cannot be deleted: it has members, or a pending transaction moves a position."""

    code = "group_in_use"
    members: int
