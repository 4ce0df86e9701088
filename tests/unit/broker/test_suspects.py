"""What members say about the messages that they process alone. It is not written anywhere."""

import pytest

from semel.broker import memberships as module
from semel.model.group_commands import JoinGroup, LeaveGroup
from semel.model.outcomes_groups import Joined, Left
from semel.model.topic_commands import CreateTopic
from tests.unit.broker.bed import Bed

SESSION_MS = 10_000


@pytest.fixture
def bed() -> Bed:
    found = Bed(segment_bytes=65_536)
    found.execute(CreateTopic("t", found.now_ms, "i", 2))
    return found


def join(bed: Bed, member: str, instance: str | None = None) -> None:
    command = JoinGroup(
        bed.now_ms,
        "g",
        member,
        topics=("t",),
        session_timeout_ms=SESSION_MS,
        instance=instance,
    )
    assert bed.execute(command) == Joined("g", member)


def hear(bed: Bed, member: str, *suspects: str, says: bool = True) -> None:
    bed.broker.endings.hear("g", member, bed.now_ms, suspects if says else None)


def test_the_end_of_a_session_has_what_the_member_has_said_last(bed: Bed) -> None:
    memberships = bed.broker.memberships
    join(bed, "m")
    end = bed.broker.end
    assert memberships.suspects_of("g", "m") is None, "it has said nothing yet"
    for suspects in ((), ("t/0",), ("t/1", "t/0")):
        hear(bed, "m", *suspects)
        assert memberships.suspects_of("g", "m") == suspects
        hear(bed, "m", says=False)
        assert memberships.expire_command("g", "m", 0).suspects == suspects
    assert bed.broker.end == end, "nothing was written"


def test_nothing_is_known_of_a_member_after_a_restart(bed: Bed) -> None:
    join(bed, "m")
    hear(bed, "m", "t/0")
    bed.restart()
    assert bed.broker.memberships.suspects_of("g", "m") == ()


def test_what_strangers_and_former_members_say_is_not_stored(bed: Bed) -> None:
    memberships = bed.broker.memberships
    hear(bed, "m", "t/0")
    join(bed, "m")
    hear(bed, "n", "t/0")
    assert memberships.suspects_of("g", "n") == ()
    hear(bed, "m", "t/0")
    assert bed.execute(LeaveGroup(bed.now_ms, "g", "m")) == Left()
    assert memberships.suspects_of("g", "m") == ()


def test_only_some_streams_are_stored(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SUSPECTS_MAX", 2)
    join(bed, "m")
    hear(bed, "m", "a", "b", "c")
    assert bed.broker.memberships.suspects_of("g", "m") == ("a", "b")


def test_the_member_of_an_instance_is_found(bed: Bed) -> None:
    memberships = bed.broker.memberships
    assert memberships.suspects_of_instance("g", "host") is None
    join(bed, "n", "other")
    join(bed, "m", "host")
    hear(bed, "m", "t/0")
    assert memberships.suspects_of_instance("g", "host") == ("t/0",)
    assert memberships.suspects_of_instance("g", "nobody") is None
    assert memberships.suspects_of_instance("g", None) is None
