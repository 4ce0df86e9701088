"""What a member of a group does with what its heartbeats bring, without a network."""

from typing import Any, Final, cast

import pytest

from semel.client import errors
from semel.client.consumer_options import (
    ConsumerOptions,
    ConsumerSettings,
    Names,
    consumer_settings,
    find_topics,
    names_of,
)
from semel.client.consuming import Consumption
from semel.client.flows import Lost, Pause
from semel.client.known_streams import KnownStreams
from semel.client.member_calls import AssignedStream, JoinedMember, Member, MemberState
from semel.client.owned_streams import MemberCursor
from semel.client.positions import KnownPositions
from semel.client.response_parser import Response
from semel.client.topic_calls import TopicCalls
from semel.client.values import Message
from semel.model.offsets import print_offset
from semel.model.slices import Slice
from semel.wire.bodies import encode_frames
from semel.wire.headers import FRAMES
from tests.unit.client.hand import SITE, Played, answer, body_of, document, play, problem
from tests.unit.client.test_topic_calls import state as topic_state

PATH: Final = "orders"


def assigned(
    path: str = PATH,
    epoch: int = 1,
    position: int = 0,
    *,
    version: int = 0,
    starts: int = 0,
    limit: int | None = None,
    incarnation: str = "i",
) -> AssignedStream:
    end = None if limit is None else print_offset(limit)
    return AssignedStream(path, incarnation, epoch, print_offset(position), version, starts, end)


def state(*streams: AssignedStream, version: str = "v", release: tuple[str, ...] = ()) -> Any:
    return MemberState(version, list(streams), list(release))


class Hand:
    """A consumption that has joined its group, and whose clock the test sets."""

    def __init__(self, *streams: AssignedStream, is_live: bool = True, **options: Any) -> None:
        self.now = 100.0
        self.positions = KnownPositions()
        self.share = Consumption(
            KnownStreams(SITE),
            "g",
            Names(streams=(PATH,)),
            ConsumerSettings(**options),
            self.positions,
            self._committer,
            is_live=is_live,
            clock=lambda: self.now,
        )
        joined = JoinedMember(
            "v0",
            list(streams),
            [],
            member="m",
            heartbeat_ms=1000,
            session_timeout_ms=3000,
            group="g",
        )
        play(self.share.join(), document(joined, 201))

    def _committer(self, cursor: MemberCursor) -> Any:
        def commit(message: Message, metadata: Any = None) -> Any:
            return cursor.move(message, metadata)

        return commit

    @property
    def member(self) -> Member:
        assert self.share.member is not None
        return self.share.member

    def hear(self, item: MemberState | Exception) -> Any:
        self.member.news.append(item)
        return self.share.take_news()


def page(first: int, *values: bytes, is_closed: bool = False, incarnation: str = "i") -> Response:
    """Return the response to a read up to the tail: messages from the offset `first` on."""
    end = first + len(values)
    slices = [
        Slice(first + index, 1, value, b"", False, 1_000) for index, value in enumerate(values)
    ]
    body = encode_frames("application/json", slices, next_offset=end, tail=end, is_closed=is_closed)
    headers = {"stream_next_offset": print_offset(end), "stream_incarnation": incarnation}
    headers["stream_up_to_date"] = "true"
    if is_closed:
        headers["stream_closed"] = "true"
    return answer(200, body, content_type=FRAMES, **headers)


def moved(to: int, version: int, path: str = PATH) -> Response:
    return document(
        {"group": "g", "offsets": {path: print_offset(to)}, "versions": {path: version}}
    )


def heartbeat_of(send: Any) -> dict[str, Any]:
    """Return what a heartbeat says, without the suspects."""
    return {name: value for name, value in body_of(send).items() if name != "suspects"}


def has_chores(hand: Hand) -> bool:
    return hand.share.has_chores


def is_exhausted(hand: Hand) -> bool:
    return hand.share.is_exhausted


def taken(hand: Hand, count: int = 1) -> list[Any]:
    return [message.value for message in hand.share.take(count)]


# ---- heartbeats ----------------------------------------------------------------------------------


def test_a_heartbeat_waits_for_a_change_of_what_the_member_knows() -> None:
    hand = Hand()
    played = Played(hand.member.beat(), [document(state(version="v1"))])
    (send,) = played.sends
    assert heartbeat_of(send) == {"wait_ms": 1000, "version": "v0"}
    assert send.silence_seconds == 2.0
    assert played.result is True
    assert Played(hand.member.beat(), [document(state(version="v1"))]).result is False
    assert len(hand.member.news) == 2


def test_a_release_is_sent_at_once_and_only_once() -> None:
    hand = Hand()
    hand.member.release(["b", "a"])
    played = Played(hand.member.beat(), [document(state(version="v1"))])
    assert heartbeat_of(played.sends[0]) == {"released": ["a", "b"], "version": "v0"}
    played = Played(hand.member.beat(), [document(state(version="v1"))])
    assert "released" not in heartbeat_of(played.sends[0])


def test_a_release_that_a_prepared_transaction_prevents_is_repeated_later() -> None:
    hand = Hand()
    hand.member.release(["a"])
    assert play(hand.member.beat(), problem(409, "unstable_offsets")) is False
    played = Played(hand.member.beat(), [document(state(version="v0"))])
    assert heartbeat_of(played.sends[0]) == {"wait_ms": 1000, "version": "v0"}
    played = Played(hand.member.beat(), [document(state(version="v1"))])
    assert heartbeat_of(played.sends[0])["released"] == ["a"]


def test_a_heartbeat_of_an_expired_member_raises() -> None:
    with pytest.raises(errors.UnknownMember):
        play(Hand().member.beat(), problem(404, "unknown_member"))


# ---- streams that come and go --------------------------------------------------------------------


def test_streams_come_with_their_positions_and_owners() -> None:
    hand = Hand(assigned(epoch=4, position=7, version=2))
    assert hand.share.take_news().assigned == [PATH]
    stream = hand.share.streams[PATH]
    assert (stream.position.offset, stream.position.version) == (7, 2)
    assert stream.position.owner == ("m", 4)
    played = Played(hand.share.fetch(), [page(7, b"1", b"2")])
    assert f"offset={print_offset(7)}" in played.sends[0].request.target
    (message,) = hand.share.take()
    assert (message.value, message.stream) == (1, PATH)
    assert message.on_commit is not None
    commit = Played(message.on_commit(message, None), [moved(8, 3)])
    assert body_of(commit.sends[0]) == {
        "offsets": {
            PATH: {
                "from": print_offset(7),
                "to": print_offset(8),
                "incarnation": "i",
                "version": 2,
            }
        },
        "member": "m",
        "epochs": {PATH: 4},
    }


def test_a_stream_that_is_not_in_the_list_or_has_a_new_epoch_is_lost() -> None:
    hand = Hand(assigned("a"), assigned("b"), assigned("c"))
    hand.share.take_news()
    old = hand.share.streams["b"]
    changes = hand.hear(state(assigned("b", epoch=2), assigned("c")))
    assert (sorted(changes.lost), changes.assigned) == (["a", "b"], ["b"])
    assert old.is_lost
    assert not hand.share.streams["b"].is_lost
    assert set(hand.share.streams) == {"b", "c"}


def test_an_expired_member_has_lost_everything_and_joins_again() -> None:
    hand = Hand(assigned("a"), assigned("b"))
    hand.share.take_news()
    changes = hand.hear(errors.UnknownMember("gone"))
    assert sorted(changes.lost) == ["a", "b"]
    assert hand.share.member is None
    assert hand.share.has_news
    joined = JoinedMember(
        "v0", [assigned("a", epoch=2)], [], member="m2", heartbeat_ms=1000, session_timeout_ms=3000
    )
    played = Played(hand.share.join(), [document(joined, 201)])
    assert [send.request.method for send in played.sends] == ["POST"]
    assert hand.share.take_news().assigned == ["a"]


def test_what_has_ended_the_heartbeats_is_raised() -> None:
    hand = Hand(assigned())
    hand.share.take_news()
    with pytest.raises(errors.Forbidden):
        hand.hear(errors.Forbidden("no"))
    assert hand.share.streams == {}


def test_a_stream_is_released_when_its_messages_are_committed() -> None:
    hand = Hand(assigned("a"), assigned("b"))
    hand.share.take_news()
    play(hand.share.fetch(), page(0, b"1", b"2"))
    (message,) = hand.share.take()
    path = message.stream
    assert path is not None
    changes = hand.hear(state(assigned("a"), assigned("b"), release=(path,)))
    assert changes.revoked == [path]
    assert hand.share.release() is False  # its message is not committed
    assert hand.share.take() == []  # and no more of it are delivered
    assert message.on_commit is not None
    play(message.on_commit(message, None), moved(1, 1, path))
    assert hand.share.release() is True
    assert path not in hand.share.streams
    # A response that was on its way does not bring it back. One with a new epoch does.
    assert hand.hear(state(assigned("a"), assigned("b"))).assigned == []
    changes = hand.hear(state(*(assigned(each, epoch=1 + (each == path)) for each in "ab")))
    assert changes.assigned == [path]


def test_a_stream_is_released_after_the_rebalance_timeout_in_any_case() -> None:
    hand = Hand(assigned(), rebalance_timeout=2.0)
    hand.share.take_news()
    play(hand.share.fetch(), page(0, b"1"))
    assert taken(hand) == [1]
    assert hand.hear(state(assigned(), release=(PATH,))).revoked == [PATH]
    hand.now += 1.9
    assert hand.share.release() is False
    hand.now += 0.2
    assert hand.share.release() is True


def test_a_release_that_is_no_longer_wanted_is_forgotten() -> None:
    hand = Hand(assigned())
    hand.share.take_news()
    play(hand.share.fetch(), page(0, b"1", b"2"))
    assert taken(hand) == [1]
    hand.hear(state(assigned(), release=(PATH,)))
    assert taken(hand) == []
    assert hand.hear(state(assigned())).revoked == []
    assert taken(hand) == [2]


# ---- messages ------------------------------------------------------------------------------------


def test_streams_take_turns_page_by_page() -> None:
    hand = Hand(assigned("a"), assigned("b"))
    hand.share.take_news()
    play(hand.share.fetch(), page(0, b"1", b"2"))
    play(hand.share.fetch(), page(0, b"10", b"20"))
    assert [taken(hand) for _ in range(4)] == [[1], [2], [10], [20]]


def test_a_batch_is_of_one_stream() -> None:
    hand = Hand(assigned("a"), assigned("b"))
    hand.share.take_news()
    play(hand.share.fetch(), page(0, b"1", b"2", b"3"))
    play(hand.share.fetch(), page(0, b"10"))
    assert [taken(hand, 2), taken(hand, 2), taken(hand, 2)] == [[1, 2], [3], [10]]


def test_messages_that_are_put_back_come_again_in_smaller_batches() -> None:
    hand = Hand(assigned())
    hand.share.take_news()
    play(hand.share.fetch(), page(0, b"1", b"2", b"3", b"4"))
    messages = hand.share.take(3)
    hand.share.streams[PATH].put_back(messages, 1)
    assert [taken(hand, 9) for _ in range(4)] == [[1], [2], [3], [4]]


def test_a_stream_is_read_up_to_its_limit_and_the_position_is_moved_there() -> None:
    hand = Hand(assigned(limit=3))
    hand.share.take_news()
    play(hand.share.fetch(), page(0, b"1", b"2"))
    (message,) = hand.share.take()
    (last,) = hand.share.take()
    assert message.on_commit is not None
    play(message.on_commit(message, None), moved(1, 1))
    play(hand.share.fetch(), page(3, b"4"))  # at 2 is a control record
    assert taken(hand) == []
    assert not has_chores(hand)  # a message is not committed yet
    play(message.on_commit(last, None), moved(2, 2))
    assert has_chores(hand)
    played = Played(hand.share.chores(), [moved(3, 3)])
    assert body_of(played.sends[0])["offsets"][PATH]["to"] == print_offset(3)
    hand.hear(state(assigned()))  # all members have passed their limits
    assert taken(hand) == [4]


def test_after_an_operator_has_moved_the_group_it_is_read_from_there() -> None:
    hand = Hand(assigned(version=1))
    hand.share.take_news()
    play(hand.share.fetch(), page(0, b"1", b"2"))
    (message,) = hand.share.take()
    conflict = problem(
        409, "position_conflict", group="g", stream=PATH, offset=print_offset(9), version=5
    )
    with pytest.raises(errors.PositionConflict):
        assert message.on_commit is not None
        play(message.on_commit(message, None), conflict)
    assert taken(hand) == []
    play(hand.share.chores(), moved(9, 5))
    played = Played(hand.share.fetch(), [page(9, b"10")])
    assert f"offset={print_offset(9)}" in played.sends[0].request.target
    (message,) = hand.share.take()
    assert message.on_commit is not None
    commit = Played(message.on_commit(message, None), [moved(10, 6)])
    assert body_of(commit.sends[0])["offsets"][PATH]["version"] == 5


def test_after_an_operator_has_moved_the_group_no_crash_is_known_of_the_next_message() -> None:
    hand = Hand(assigned(version=1, starts=2), max_attempts=3)
    hand.share.take_news()
    (stream,) = hand.share.streams.values()
    stream.is_displaced = True
    play(hand.share.chores(), moved(9, 5))
    (stream,) = hand.share.streams.values()
    assert (stream.starts, stream.position.offset) == (0, 9)
    play(hand.share.fetch(), page(9, b"10"))
    (message,) = hand.share.take()
    assert message.attempts == 0


def test_a_member_that_has_read_everything_hears_that_an_operator_has_moved_the_group() -> None:
    hand = Hand(assigned(version=1))
    hand.share.take_news()
    play(hand.share.fetch(), page(0, b"1"))
    (message,) = hand.share.take()
    hand.hear(state(assigned(version=9)))
    assert not has_chores(hand), "what was delivered shows it at its commit"
    assert message.on_commit is not None
    play(message.on_commit(message, None), moved(1, 2))
    hand.hear(state(assigned(position=1, version=2)))
    assert not has_chores(hand), "this was its own move"
    hand.hear(state(assigned(position=0, version=3)))
    assert has_chores(hand)
    play(hand.share.chores(), moved(0, 3))
    assert taken(hand) == []
    play(hand.share.fetch(), page(0, b"1"))
    assert taken(hand) == [1]


def test_a_position_that_a_transaction_holds_does_not_end_the_stream() -> None:
    hand = Hand(assigned())
    hand.share.take_news()
    play(hand.share.fetch(), page(0, b"1", b"2"))
    (message,) = hand.share.take()
    held = problem(409, "unstable_offsets", group="g", stream=PATH)
    with pytest.raises(errors.UnstableOffsets):
        assert message.on_commit is not None
        play(message.on_commit(message, None), held)
    assert taken(hand) == [2]


def test_after_a_commit_that_was_refused_the_stream_is_read_no_further() -> None:
    hand = Hand(assigned())
    hand.share.take_news()
    play(hand.share.fetch(), page(0, b"1", b"2"))
    (message,) = hand.share.take()
    refusal = problem(409, "ILLEGAL_GENERATION", group="g", stream=PATH, epoch=3)
    with pytest.raises(errors.IllegalGeneration):
        assert message.on_commit is not None
        play(message.on_commit(message, None), refusal)
    assert taken(hand) == []


@pytest.mark.parametrize("reply", [problem(404, "stream_not_found"), page(0, incarnation="other")])
def test_a_stream_that_was_deleted_is_dropped(reply: Response) -> None:
    hand = Hand(assigned("a"), assigned("b"))
    hand.share.take_news()
    played = Played(hand.share.fetch(), [reply, page(0, b"1")])
    assert played.error is None
    assert len(hand.share.streams) == 1
    assert taken(hand) == [1]


def test_without_messages_the_member_waits_longer_each_time() -> None:
    hand = Hand(assigned("a"), assigned("b"))
    hand.share.take_news()
    pauses = []
    for _ in range(6):
        played = Played(hand.share.fetch(), [page(0), page(0)])
        pauses += [step.seconds for step in played.steps if isinstance(step, Pause)]
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.25, 0.25]


def test_a_single_stream_is_waited_for_by_the_server() -> None:
    hand = Hand(assigned())
    hand.share.take_news()
    play(hand.share.fetch(), page(0))
    played = Played(hand.share.fetch(), [page(0, b"1")])
    assert "live=long-poll" in played.sends[0].request.target
    assert taken(hand) == [1]


# ---- the end -------------------------------------------------------------------------------------


def description(*streams: dict[str, Any]) -> Response:
    return document({"group": "g", "streams": [{"stream": "x", **each} for each in streams]})


def test_without_live_it_ends_at_the_tails_of_the_streams() -> None:
    hand = Hand(assigned(), is_live=False)
    hand.share.take_news()
    assert not is_exhausted(hand)
    play(hand.share.fetch(), page(0, b"1"))
    assert not is_exhausted(hand)
    assert taken(hand) == [1]
    assert is_exhausted(hand)
    assert play(hand.share.is_over(), description()) is True


def test_a_live_member_ends_when_its_streams_are_closed() -> None:
    hand = Hand(assigned())
    hand.share.take_news()
    play(hand.share.fetch(), page(0, b"1", is_closed=True))
    assert not is_exhausted(hand)
    assert taken(hand) == [1]
    assert is_exhausted(hand)


# ---- options and names ---------------------------------------------------------------------------


def test_retries_end_with_the_attempts() -> None:
    settings = ConsumerSettings(max_attempts=4, backoff=0.5)
    assert [settings.retry_seconds(failures, 0) for failures in (1, 2, 3, 4)] == [0.5, 1, 2, None]
    assert settings.retry_seconds(1, 3) is None  # crashes count as attempts
    assert ConsumerSettings(retries=1).retry_seconds(2, 0) is None
    assert ConsumerSettings(max_attempts=None).retry_seconds(1, 0) is None
    assert ConsumerSettings(max_attempts=None, retries=3).retry_seconds(3, 9) is not None


def test_each_worker_has_an_instance_of_its_own() -> None:
    settings = ConsumerSettings(instance="w")
    assert [each.instance for each in settings.of_workers(3)] == ["w-0", "w-1", "w-2"]
    assert settings.of_workers(1) == [settings]
    with pytest.raises(ValueError, match="workers=0"):
        settings.of_workers(0)


def test_wrong_options_are_refused() -> None:
    assert consumer_settings(ConsumerOptions(retries=0)).retries == 0
    wrong: list[dict[str, Any]] = [
        {"max_attempts": 0},
        {"session_timeout": -1},
        {"rebalance_timeout": 0},
        {"retries": -1},
        {"backoff": -0.1},
        {"start": "now"},
    ]
    for options in wrong:
        with pytest.raises(ValueError, match=next(iter(options))):
            consumer_settings(cast("ConsumerOptions", options))


def test_a_text_is_a_pattern_or_the_name_of_a_stream_or_a_topic() -> None:
    topic = TopicCalls(SITE, "t")

    class Topic:
        calls = topic

    found = names_of(SITE, ["a", "b/*", "**/c", Topic()], streams=["s"], patterns=["p"])
    assert found.names == ("a",)
    assert found.patterns == ("p", "b/*", "**/c")
    assert found.streams == ("s",)
    assert [calls.path for calls in found.topics] == ["t"]
    assert found.has_sharing
    assert not names_of(SITE, "a").has_sharing
    with pytest.raises(TypeError, match="int"):
        names_of(SITE, [7])
    for wrong in ({"given": ["d*"]}, {"given": ["d*/*"]}, {"given": [], "patterns": ["d*"]}):
        with pytest.raises(ValueError, match="must be a whole segment"):
            names_of(SITE, **wrong)
    with pytest.raises(ValueError, match="no pattern matches a path below __semel/"):
        names_of(SITE, ["__semel/*"])
    assert names_of(SITE, [], streams=["d*"]).streams == ("d*",)


def test_names_are_looked_up_once() -> None:
    names = names_of(SITE, ["orders", "plain"])
    found = play(find_topics(SITE, names), topic_state(), problem(404, "topic_not_found"))
    assert [calls.path for calls in found.topics] == ["orders"]
    assert found.streams == ("plain",)
    older = play(find_topics(SITE, names), document({}, 404))
    assert (older.streams, older.topics) == (("orders", "plain"), ())


def test_a_join_without_a_response_is_sent_again_under_the_same_instance() -> None:
    hand = Hand()
    joined = JoinedMember("v", [], [], member="m", heartbeat_ms=1000, session_timeout_ms=3000)
    played = Played(hand.share.join(), [Lost("reset"), document(joined, 201)])
    bodies = [body_of(send) for send in played.sends]
    assert bodies[0] == bodies[1]
    assert bodies[0]["instance"].startswith("consumer-")
    assert bodies[0]["streams"] == [PATH]
