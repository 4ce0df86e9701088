"""Dead letters: rejecting messages, and processing them again, against a real server."""

import json
import threading
from typing import Any, Final

import pytest

from semel import Client, errors
from semel.client.dead_letters import decode_envelope
from semel.model.rights import dead_letters_of, retries_of
from tests.integration.test_client_workers import done, values
from tests.spec.process import Server
from tests.spec.txn_calls import fresh

COUNT: Final = 10


@pytest.fixture
def group() -> str:
    return fresh("g")


@pytest.fixture
def stream(client: Any) -> str:
    path = fresh("in")
    stream = client.stream(path).create("application/json")
    for number in range(COUNT):
        stream.append({"number": number}, key=f"k{number}", headers={"trace": f"t{number}"})
    return path


def reject_odd(client: Any, stream: str, group: str) -> None:
    """Consume a stream, and reject the messages with odd numbers."""
    with client.consume(stream, group=group, live=False) as consumer:
        for message in consumer:
            is_odd = message.value["number"] % 2
            done(client, message.reject(f"{message.offset} is odd") if is_odd else message.commit())


def test_a_dead_letter_says_where_and_why_it_was_rejected(
    client: Any, stream: str, group: str
) -> None:
    reject_odd(client, stream, group)
    letters = list(client.dead_letters(group))
    assert [letter.value["number"] for letter in letters] == [1, 3, 5, 7, 9]
    sources = list(client.stream(stream).read())
    for letter in letters:
        source = sources[letter.value["number"]]
        assert letter.origin == (stream, source.offset)
        assert letter.cause == f"{source.offset} is odd"
        assert (letter.key, letter.message.headers) == (source.key, source.headers)
        assert letter.message.timestamp == source.timestamp
        assert (letter.attempts, letter.group, letter.is_whole) == (1, group, True)
    assert client.dead_letters(group).show(letters[2].offset).value == {"number": 5}
    with pytest.raises(ValueError, match="no dead letter"):
        client.dead_letters(group).show("0000000000000000_0000000000000099")
    assert client.group(group).describe().lag == 0


def test_the_envelope_is_plain_json_in_a_stream_of_the_group(
    client: Any, stream: str, group: str
) -> None:
    reject_odd(client, stream, group)
    assert client.dead_letters(group).path == dead_letters_of(group)
    first = next(iter(client.stream(dead_letters_of(group)).read()))
    assert first.value["stream"] == stream
    assert first.value["value"] == {"number": 1}
    assert first.value["key"] == "k1"
    assert first.value["headers"] == {"trace": "t1"}


def test_a_replay_goes_to_the_members_of_the_group_once(
    client: Any, stream: str, group: str
) -> None:
    reject_odd(client, stream, group)
    before = [message.value for message in client.stream(stream).read()]
    letters = client.dead_letters(group)
    assert letters.replay(limit=2) == 2
    assert letters.replay() == 3
    assert letters.replay() == 0
    assert list(letters) == []
    assert len(list(letters.list(all=True))) == 5
    got = []
    with client.consume(stream, group=group, live=False) as consumer:
        for message in consumer:
            assert message.stream == retries_of(group)
            assert message.origin.stream == stream
            assert message.key == f"k{message.value['number']}".encode()
            assert message.attempts == 1
            got.append(message.value["number"])
            done(client, message.commit())
    assert got == [1, 3, 5, 7, 9]
    assert [message.value for message in client.stream(stream).read()] == before


def test_a_replayed_message_can_be_rejected_again_and_keeps_its_origin(
    client: Any, stream: str, group: str
) -> None:
    reject_odd(client, stream, group)
    letters = client.dead_letters(group)
    first = next(iter(letters.list()))
    letters.replay(limit=1)
    letters.drop()
    with client.consume(stream, group=group, live=False) as consumer:
        for message in consumer:
            done(client, message.reject("still bad"))
    (again,) = letters.list()
    assert again.origin == first.origin
    assert (again.value, again.cause, again.attempts) == (first.value, "still bad", 2)


def test_dropped_letters_are_not_replayed(client: Any, stream: str, group: str) -> None:
    reject_odd(client, stream, group)
    letters = client.dead_letters(group)
    until = list(letters)[2].offset
    assert letters.drop(until=until) == 2
    assert letters.replay() == 3


def test_replays_at_the_same_time_copy_each_letter_once(server: Server) -> None:
    stream, group = fresh("in"), fresh("g")
    with Client(server.url) as client:
        client.stream(stream).create("application/json").append_many(
            [{"number": 2 * number + 1} for number in range(300)]
        )
        reject_odd(client, stream, group)
        counts: list[int] = []

        def replay() -> None:
            with Client(server.url) as own:
                counts.extend([own.dead_letters(group).replay(limit=7) for _ in range(30)])

        threads = [threading.Thread(target=replay) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        counts.append(client.dead_letters(group).replay())
        numbers = [each["value"]["number"] for each in values(client, retries_of(group))]
        assert numbers == [2 * number + 1 for number in range(300)]
        assert sum(counts) == 300


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream"])
def test_messages_of_every_type_come_back_as_they_were(
    client: Any, group: str, content_type: str
) -> None:
    stream = fresh("in")
    raw = [b"plain", "ü\x00".encode()]
    if content_type == "application/octet-stream":
        raw += [b"\xff\xfe\x00"]
    for each in raw:
        client.stream(stream).create(content_type, exist_ok=True).append(each, key=b"\xff")
    with client.consume(stream, group=group, live=False) as consumer:
        for message in consumer:
            done(client, message.reject("\ud800 is not UTF-8"))
    letters = list(client.dead_letters(group))
    assert [letter.message.raw for letter in letters] == raw
    assert {letter.key for letter in letters} == {b"\xff"}
    assert letters[0].cause == "\\ud800 is not UTF-8"
    client.dead_letters(group).replay()
    with client.consume(stream, group=group, live=False) as consumer:
        again = [(message.raw, message.content_type, message.key) for message in consumer]
    assert again == [(each, content_type, b"\xff") for each in raw]


def test_a_message_that_is_too_large_for_a_letter_stays_in_its_stream(
    client: Any, group: str
) -> None:
    stream = fresh("in")
    client.stream(stream).create("application/octet-stream").append(b"\xff" * 3_500_000)
    with client.consume(stream, group=group, live=False) as consumer:
        for message in consumer:
            done(client, message.reject("too large"))
    (letter,) = client.dead_letters(group)
    assert not letter.is_whole
    assert letter.origin.stream == stream
    with pytest.raises(errors.CannotReplay, match="cannot be replayed"):
        client.dead_letters(group).replay()
    assert client.dead_letters(group).drop() == 1


def test_a_tail_with_a_group_can_reject_as_well(client: Any, stream: str, group: str) -> None:
    with client.stream(stream).tail(group=group) as tail:
        for _ in range(3):
            done(client, next(tail).reject("no"))
        done(client, next(tail).commit())
    assert [each.value["number"] for each in client.dead_letters(group)] == [0, 1, 2]
    assert client.group(group).offsets()[stream].endswith("4")


def test_a_rejection_by_a_member_that_has_lost_the_stream_stores_nothing(
    client: Any, stream: str, group: str
) -> None:
    old = client.consume(stream, group=group, instance="one", live=False)
    message = next(old)
    with (
        client.consume(stream, group=group, instance="one", live=False) as new,
        pytest.raises(errors.IllegalGeneration),
    ):
        next(new)
        done(client, message.reject("late"))
    assert list(client.dead_letters(group)) == []
    old.close()


def test_other_messages_cannot_be_rejected(client: Any, stream: str) -> None:
    message = next(iter(client.stream(stream).read()))
    with pytest.raises(ValueError, match="can be rejected"):
        message.reject("no group")


def test_a_reset_and_a_new_group_do_not_process_replayed_messages_again(
    client: Any, stream: str, group: str
) -> None:
    """The retry stream has copies: the messages come again from the source."""
    reject_odd(client, stream, group)
    letters, retries = client.dead_letters(group), retries_of(group)
    letters.replay()
    reject_odd(client, stream, group)  # the copies, which become dead letters again
    assert client.group(group).reset() == {stream: "0000000000000000_0000000000000000"}
    assert len(read_all(client, stream, group)) == COUNT
    client.group(group).reset(streams=[retries])
    assert len(read_all(client, stream, group)) == 5
    client.group(group).delete()
    with pytest.raises(errors.StreamNotFound):
        client.stream(retries).head()
    assert len(list(letters)) == 5
    assert len(read_all(client, stream, group)) == COUNT
    assert letters.replay() == 5
    assert len(read_all(client, stream, group)) == 5


def read_all(client: Any, stream: str, group: str) -> list[Any]:
    """Consume what is there, and return the values."""
    got = []
    with client.consume(stream, group=group, live=False) as consumer:
        for message in consumer:
            got.append(message.value)
            done(client, message.commit())
    return got


def test_the_reason_of_a_rejection_can_be_an_exception(
    client: Any, stream: str, group: str
) -> None:
    with client.consume(stream, group=group, live=False) as consumer:
        for number, message in enumerate(consumer):
            for wrong in (None, 7):
                with pytest.raises(TypeError, match="must be a text or an exception"):
                    done(client, message.reject(wrong))
            done(client, message.reject((ValueError("no price"), KeyError())[number % 2]))
            if number == 1:
                break
    assert [letter.cause for letter in client.dead_letters(group)] == [
        "ValueError: no price",
        "KeyError",
    ]


def test_a_member_that_rejects_twice_is_told_to_continue(
    client: Any, stream: str, group: str
) -> None:
    with client.consume(stream, group=group, live=False) as consumer:
        message = next(consumer)
        done(client, message.reject("no"))
        with pytest.raises(errors.PositionConflict, match="continue with the next message") as e:
            done(client, message.reject("again"))
        assert "abort the transaction" not in str(e.value)
        assert next(consumer).value["number"] == 1
    assert len(list(client.dead_letters(group))) == 1


def test_a_name_that_is_not_utf8_is_refused_before_a_request(client: Any, stream: str) -> None:
    with pytest.raises(ValueError, match="unpaired surrogate"):
        client.group("\ud800").describe()
    with pytest.raises(ValueError, match="unpaired surrogate"):
        next(client.consume(stream, group="\ud800"))


def test_the_limit_of_a_group_s_name_is_in_the_message(client: Any, stream: str) -> None:
    with pytest.raises(errors.BadRequest, match="256 bytes") as refused:
        next(client.consume(stream, group="g" * 300))
    assert "241 bytes after percent-encoding" in str(refused.value)


def test_an_unknown_group_is_an_error(client: Any, group: str) -> None:
    with pytest.raises(errors.GroupNotFound):
        list(client.dead_letters(group))
    with pytest.raises(errors.GroupNotFound):
        client.group(group).describe()
    with pytest.raises(errors.GroupNotFound):
        client.group(group).reset()
    with pytest.raises(errors.GroupNotFound):
        client.group(group).delete()


# ---- messages that are not dead letters of the group ---------------------------------------------


def test_ordinary_messages_are_neither_listed_nor_replayed(
    client: Any, stream: str, group: str
) -> None:
    """A copy of an ordinary message would be processed a second time, from the retry stream."""
    client.group(group).set({stream: 0})
    letters = client.dead_letters(group, stream=stream)
    assert list(letters.list(all=True)) == []
    with pytest.raises(errors.CannotReplay, match="is not a dead letter") as caught:
        letters.replay()
    assert (caught.value.stream, caught.value.copied) == (stream, 0)
    assert caught.value.offset == next(iter(client.stream(stream).read())).offset
    with pytest.raises(ValueError, match="no dead letter"):
        letters.show(caught.value.offset)
    assert letters.drop() == 0
    with pytest.raises(errors.StreamNotFound):
        client.stream(retries_of(group)).head()


def test_a_replay_stops_before_what_it_cannot_copy_and_continues_after_a_drop(
    client: Any, stream: str, group: str
) -> None:
    reject_odd(client, stream, group)
    dead = client.stream(dead_letters_of(group))
    dead.append({"note": "no envelope"})
    odd = dead_letters_of(group)
    for letter in list(client.stream(odd).read())[:1]:
        dead.append(letter.value)
    letters = client.dead_letters(group)
    assert len(list(letters)) == 6
    with pytest.raises(errors.CannotReplay, match="5 dead letters before it were copied") as caught:
        letters.replay()
    assert caught.value.copied == 5
    assert len(list(letters)) == 1
    assert letters.drop(until=caught.value.next_offset) == 0
    assert letters.replay() == 1
    copied = [each["value"]["number"] for each in values(client, retries_of(group))]
    assert copied == [1, 3, 5, 7, 9, 1]


def test_error_messages_of_earlier_pipelines_are_passed_over(
    client: Any, stream: str, group: str
) -> None:
    reject_odd(client, stream, group)
    path, letters = fresh("errors"), list(client.dead_letters(group))
    errors_stream = client.stream(path).create("application/json")
    earlier = {"type": "q.type.err/processor", "inputs": [{"stream": stream, "offset": "0"}]}
    damaged = {"group": group, "stream": stream, "offset": "0", "content_type": "a/b"}
    errors_stream.append_many([earlier, json.loads(letters[0].raw), damaged | {"base64": "a"}])
    of_errors = client.dead_letters(group, stream=path)
    assert [each.value["number"] for each in of_errors] == [1]
    with pytest.raises(errors.CannotReplay, match="1 dead letter before it was copied"):
        of_errors.replay()


def test_dead_letters_of_other_groups_are_passed_over(client: Any, stream: str, group: str) -> None:
    reject_odd(client, stream, group)
    other = fresh("g")
    client.group(other).set({stream: 0})
    letters = client.dead_letters(other, stream=dead_letters_of(group))
    first = next(iter(client.dead_letters(group))).offset
    assert list(letters.list(all=True)) == []
    with pytest.raises(ValueError, match="no dead letter"):
        letters.show(first)
    assert letters.replay() == 0
    assert len(list(client.dead_letters(group))) == 5


def test_an_unknown_group_or_stream_is_an_error_of_every_call(
    client: Any, stream: str, group: str
) -> None:
    unknown = client.dead_letters(group, stream=stream)
    for call in (lambda: list(unknown), unknown.replay, unknown.drop):
        with pytest.raises(errors.GroupNotFound):
            call()
    client.group(group).set({stream: 0})
    missing = client.dead_letters(group, stream=fresh("none"))
    for call in (lambda: list(missing), missing.replay, missing.drop):
        with pytest.raises(errors.StreamNotFound):
            call()
    assert list(client.dead_letters(group)) == []
    assert client.dead_letters(group).replay() == 0


# ---- workers -------------------------------------------------------------------------------------


def test_a_message_whose_function_fails_becomes_a_dead_letter(
    client: Any, stream: str, group: str
) -> None:
    output = fresh("out")
    client.stream(output).create("application/json")
    calls: list[int] = []

    def fail_at_four(batch: Any) -> dict[str, Any]:
        for message in batch:
            if message.value["number"] == 4:
                calls.append(len(batch))
                raise ValueError("four is bad")
        return {output: [message.value["number"] for message in batch]}

    count = client.process(
        group, stream, fail_at_four, workers=1, live=False, max_attempts=3, backoff=0.001
    )
    assert count == COUNT
    assert values(client, output) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert calls == [COUNT, 1, 1, 1]
    (letter,) = client.dead_letters(group)
    assert (letter.value, letter.cause) == ({"number": 4}, "ValueError: four is bad")
    assert letter.attempts == 3
    envelope = decode_envelope(letter.raw)
    assert envelope is not None
    assert envelope.group == group


def test_the_number_of_retries_can_be_less_than_that_of_attempts(
    client: Any, stream: str, group: str
) -> None:
    calls: list[int] = []

    def fail(batch: Any) -> None:
        calls.extend(message.value["number"] for message in batch if len(batch) == 1)
        raise ValueError("no")

    client.process(group, stream, fail, workers=1, live=False, retries=1, backoff=0)
    assert calls == [number for number in range(COUNT) for _ in range(2)]
    assert {letter.attempts for letter in client.dead_letters(group)} == {2}
