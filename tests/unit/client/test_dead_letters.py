"""Dead letters in the client: the envelope, and the one commit that stores it or replays it."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.client import errors
from semel.client.commit_sequence import CommitSequence
from semel.client.dead_letter_calls import DeadLetterCalls, replay_group_of
from semel.client.dead_letters import (
    LETTER_BYTES_MAX,
    cause_of,
    envelope_of,
    letter_of,
    reject_message,
    unwrap,
)
from semel.client.flows import Lost
from semel.client.group_calls import GroupCursor
from semel.client.known_streams import KnownStreams
from semel.client.positions import KnownPosition, KnownPositions, Ownership
from semel.client.reading import StreamName
from semel.client.values import Message
from semel.model.offsets import print_offset
from semel.model.rights import dead_letters_of
from tests.unit.client.hand import SITE, Played, answer, body_of, document, play, problem

JSON = "application/json"
LOST = Lost("reset")
REGISTERED = document({"producer_id": "p-1", "producer_epoch": 3})
CREATED = answer(201, content_type=JSON, stream_next_offset=print_offset(0), stream_incarnation="d")
HEAD = answer(200, content_type=JSON, stream_next_offset=print_offset(0), stream_incarnation="d")
COMMITTED = document({"duplicate": False, "streams": {}, "offsets": {}, "deleted": []})


def message(
    raw: bytes = b'{"n":1}', content_type: str = JSON, ordinal: int = 7, **members: Any
) -> Message:
    source = StreamName("orders", "inc-1")
    return Message(raw, content_type, ordinal, ordinal + 1, source=source, **members)


def stored(envelope: bytes, ordinal: int = 3) -> Message:
    """Return the message of the stream of dead letters that has an envelope."""
    return Message(envelope, JSON, ordinal, ordinal + 1, 5_000, source=StreamName("dead"))


def cursor(owner: Ownership | None = None, group: str = "g") -> GroupCursor:
    found = GroupCursor(SITE, group, "orders", KnownPositions())
    found.position = KnownPosition(7, 2, "inc-1", owner)
    return found


# ---- envelopes -----------------------------------------------------------------------------------


@given(
    raw=st.binary(max_size=40) | st.text(max_size=20).map(str.encode),
    content_type=st.sampled_from(["text/plain", "application/octet-stream"]),
    key=st.none() | st.binary(max_size=10),
    headers=st.lists(st.tuples(st.sampled_from(["a", "b"]), st.binary(max_size=5)), max_size=4),
    time_ms=st.none() | st.integers(0, 2**40),
    cause=st.text(st.characters(codec=None), max_size=20),
)
def test_every_message_comes_back_from_its_envelope(
    raw: bytes,
    content_type: str,
    key: bytes | None,
    headers: list[tuple[str, bytes]],
    time_ms: int | None,
    cause: str,
) -> None:
    source = message(raw, content_type, key=key, headers=headers, time_ms=time_ms)
    letter = letter_of(stored(envelope_of(source, "g", cause, attempts=4)))
    found = letter.message
    assert (found.raw, found.content_type, found.key) == (raw, content_type, key)
    assert sorted(found.headers) == sorted(headers)
    assert found.time_ms == time_ms
    assert letter.origin == ("orders", print_offset(7))
    assert (letter.attempts, letter.group, letter.is_whole) == (4, "g", True)


@pytest.mark.parametrize(
    "raw", [b'{"a": [1, 2.50, "\\u00e9"]}', b"null", b'"text"', b"[]", b"0.10"]
)
def test_json_stays_as_it_was_sent(raw: bytes) -> None:
    envelope = envelope_of(message(raw), "g", "no", attempts=1)
    assert letter_of(stored(envelope)).message.raw == raw
    assert bytes(msgspec.json.decode(envelope, type=dict[str, msgspec.Raw])["value"]) == raw


@pytest.mark.parametrize("raw", [b"[" * 128 + b"]" * 128, b'["\\ud800"]'])
def test_json_that_cannot_be_decoded_in_an_envelope_is_stored_as_base64(raw: bytes) -> None:
    envelope = envelope_of(message(raw), "g", "no", attempts=1)
    assert "base64" in msgspec.json.decode(envelope)
    assert letter_of(stored(envelope)).message.raw == raw


def test_a_message_that_is_too_large_is_left_out() -> None:
    raw = b"\xff" * LETTER_BYTES_MAX
    letter = letter_of(stored(envelope_of(message(raw, "a/b"), "g", "no", attempts=1)))
    assert not letter.is_whole
    assert letter.message.raw == b""
    assert len(letter.raw) < 1_000


def test_what_is_not_an_envelope_is_a_letter_without_an_origin() -> None:
    for raw in (b"1", b'{"a":1}', b"null"):
        letter = letter_of(stored(raw))
        assert (letter.origin.stream, letter.attempts, letter.message.raw) == (None, 0, raw)
        same = stored(raw)
        unwrap(same)
        assert (same.raw, same.letter) == (raw, None)


def test_a_message_of_the_retry_stream_is_the_one_that_was_rejected() -> None:
    first = stored(envelope_of(message(key=b"k"), "g", "bad", attempts=2), ordinal=9)
    unwrap(first)
    assert (first.raw, first.key, first.offset) == (b'{"n":1}', b"k", print_offset(9))
    assert first.origin == ("orders", print_offset(7))
    assert first.attempts == 2
    again = letter_of(stored(envelope_of(first, "g", "worse", attempts=3)))
    assert again.origin == ("orders", print_offset(7))
    assert msgspec.json.decode(again.raw)["incarnation"] == "inc-1"


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("text", "text"),
        (ValueError("no"), "ValueError: no"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (Silent(), "Silent: the error has no text, because its __str__ raised RuntimeError"),
    ],
)
def test_a_cause_is_a_text_or_the_class_and_text_of_an_exception(
    reason: object, cause: str
) -> None:
    assert cause_of(reason) == cause


# ---- rejecting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("owner", [None, Ownership("m-1", 6)])
def test_the_envelope_and_the_position_are_in_one_commit(owner: Ownership | None) -> None:
    sequence, own = CommitSequence(KnownStreams(SITE)), cursor(owner)
    played = Played(
        reject_message(sequence, own, message(), "bad"), [CREATED, REGISTERED, HEAD, COMMITTED]
    )
    assert played.error is None
    commit = body_of(played.sends[-1])
    (append,) = commit["appends"]
    assert append["stream"] == dead_letters_of("g")
    assert append["messages"][0]["cause"] == "bad"
    assert commit["offsets"] == {
        "g": {
            "orders": {
                "from": print_offset(7),
                "to": print_offset(8),
                "incarnation": "inc-1",
                "version": 2,
            }
        }
    }
    assert commit.get("member") == (None if owner is None else "m-1")
    assert commit.get("epochs", {}) == ({} if owner is None else {"orders": 6})
    assert (own.position.offset, own.position.version) == (8, 3)


def test_a_refused_rejection_stores_nothing_and_is_reported_to_the_reader() -> None:
    noted: list[Exception] = []

    class Noting(GroupCursor):
        def note_refusal(self, error: errors.PositionRefused) -> None:
            noted.append(error)

    own = Noting(SITE, "g", "orders", KnownPositions())
    own.position = KnownPosition(7, 2, None, Ownership("m", 1))
    sequence = CommitSequence(KnownStreams(SITE))
    refusal = problem(409, "ILLEGAL_GENERATION", group="g", stream="orders", epoch=5)
    with pytest.raises(errors.IllegalGeneration):
        play(reject_message(sequence, own, message(), "bad"), CREATED, REGISTERED, HEAD, refusal)
    assert [type(error) for error in noted] == [errors.IllegalGeneration]
    assert own.position.offset == 7
    # The number of the refused commit is still free.
    played = Played(reject_message(sequence, own, message(), "bad"), [COMMITTED])
    assert body_of(played.sends[0])["producer_seq"] == 0


def test_after_an_unknown_outcome_the_next_commit_has_another_producer() -> None:
    sequence, own = CommitSequence(KnownStreams(SITE)), cursor()
    flow = reject_message(sequence, own, message(), "bad")
    played = Played(flow, [CREATED, REGISTERED, HEAD, LOST, False])
    assert isinstance(played.error, errors.Indeterminate)
    second = document({"producer_id": "p-2", "producer_epoch": 0})
    played = Played(reject_message(sequence, own, message(), "bad"), [second, COMMITTED])
    assert body_of(played.sends[-1])["producer_id"] == "p-2"
    assert [each.producer_id for each in sequence.retirements()] == ["p-1", "p-2"]
    assert sequence.retirements() == []


def test_a_stream_of_dead_letters_that_was_deleted_is_created_again() -> None:
    sequence, own = CommitSequence(KnownStreams(SITE)), cursor()
    play(reject_message(sequence, own, message(), "a"), CREATED, REGISTERED, HEAD, COMMITTED)
    missing = problem(404, "stream_not_found", stream=dead_letters_of("g"))
    flow = reject_message(sequence, own, message(ordinal=8), "b")
    played = Played(flow, [missing, CREATED, HEAD, COMMITTED])
    assert [send.request.method for send in played.sends] == ["POST", "PUT", "HEAD", "POST"]


# ---- replaying -----------------------------------------------------------------------------------


def positions(offset: int, version: int) -> Any:
    name, path = replay_group_of("g"), dead_letters_of("g")
    return document(
        {"group": name, "offsets": {path: print_offset(offset)}, "versions": {path: version}}
    )


def test_a_replay_reads_from_the_position_that_it_moves() -> None:
    """Otherwise a letter would be copied twice if another client moves the group in between."""
    calls, sequence = DeadLetterCalls(SITE, "g"), CommitSequence(KnownStreams(SITE))
    end = answer(
        200,
        b"[]",
        content_type=JSON,
        stream_next_offset=print_offset(4),
        stream_up_to_date="true",
        stream_incarnation="d",
    )
    played = Played(calls.replay(sequence), [HEAD, positions(4, 2), end])
    assert played.error is None
    assert played.result == 0
    targets = [send.request.target for send in played.sends]
    assert sum("/offsets" in target for target in targets) == 1
    assert f"offset={print_offset(4)}" in targets[-1]


def test_negative_limits_are_refused() -> None:
    calls = DeadLetterCalls(SITE, "g")
    with pytest.raises(ValueError, match="limit=-1"):
        play(calls.drop(limit=-1))
