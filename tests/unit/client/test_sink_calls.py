"""The calls of a sink, run without a network."""

import msgspec

from semel.client import commit_calls, errors, server_calls
from semel.client.commit_calls import KnownStreams, Parts, SinkInfo, TaskCalls, Version
from semel.client.flows import Flow, Lost
from semel.client.stream_calls import NO_EXTRAS
from semel.model.offsets import print_offset
from tests.unit.client.hand import SITE, Played, answer, calls, play, problem

LOST = Lost("gone")
BEGUN = answer(201, b'{"transaction_id":"x","transaction_epoch":1,"state":"open","deadline":null}')
STAGED = answer(200, transaction_next_seq="1")
AGAIN = answer(204, transaction_next_seq="1")
PREPARED = answer(200, b'{"state":"prepared","token":"x:1"}')
DONE = answer(200, b'{"duplicate":true,"streams":{},"sink":{"app":"a","version":3}}')


def begun() -> TaskCalls:
    task = TaskCalls(SITE, "app", 3, 5)
    play(task.begin(), BEGUN)
    return task


def test_a_task_begins_once_and_says_whose_it_is() -> None:
    task = TaskCalls(SITE, "app", 3, 5)
    played = Played(task.begin(), [LOST, BEGUN])
    first, second = [send.request.body for send in played.sends]
    assert first == second
    assert msgspec.json.decode(first or b"") == {
        "transaction_id": task.id,
        "kind": "staged",
        "sink": {"app": "app", "version": 3, "partition": 5},
    }
    assert Played(task.begin(), []).sends == []
    assert task.token == f"{task.id}:1"
    assert TaskCalls(SITE, "app", 3, 5).id != task.id


def test_chunks_are_numbered_over_all_streams_and_sent_again_under_their_number() -> None:
    task = begun()
    play(task.append(calls("a"), [1, 2], NO_EXTRAS), STAGED)
    played = Played(task.append_batch(calls("b"), b"body", 7), [LOST, AGAIN])
    for send in played.sends:
        assert ("Transaction-Seq", "1") in send.request.headers
        assert ("Content-Type", "application/vnd.semel.batch") in send.request.headers
    prepared = Played(task.prepare(), [PREPARED])
    assert msgspec.json.decode(prepared.sends[0].request.body or b"") == {
        "transaction_epoch": 1,
        "chunks": 2,
        "messages": {"a": 2, "b": 7},
    }
    assert prepared.result == "x:1"
    assert play(task.prepare(), PREPARED) == "x:1"


def refused(flow: Flow[object], *replies: object) -> type | None:
    error = Played(flow, replies).error
    return None if error is None else type(error)


def test_a_refused_chunk_does_not_use_its_number_and_a_silent_one_ends_the_task() -> None:
    task = begun()
    assert refused(task.append_batch(calls("a"), b"x", 1), problem(400, "bad_body"))
    assert (task.chunks, task.messages["a"]) == (0, 0)
    play(task.append_batch(calls("a"), b"x", 1), STAGED)
    silent = [LOST, False]  # no time for another attempt
    assert refused(task.append_batch(calls("a"), b"x", 1), *silent) is errors.Indeterminate
    for flow in (task.append_batch(calls("a"), b"x", 1), task.prepare()):
        assert refused(flow) is errors.InvalidTransactionState


def test_a_task_takes_nothing_before_it_begins_and_nothing_after_it_is_prepared() -> None:
    fresh = TaskCalls(SITE, "app", 0, 0)
    assert refused(fresh.append(calls("a"), [1], NO_EXTRAS)) is errors.InvalidTransactionState
    assert Played(fresh.abort(), []).sends == []
    task = begun()
    play(task.prepare(), PREPARED)
    assert refused(task.append(calls("a"), [1], NO_EXTRAS)) is errors.InvalidTransactionState


def test_an_abort_of_what_is_committed_says_so() -> None:
    task = begun()
    assert refused(task.abort(), problem(409, "txn_committed")) is errors.TransactionCommitted
    played = Played(task.abort(), [LOST, answer(200, b'{"state":"aborted"}')])
    assert played.error is None
    assert played.sends[0].request.target == f"/v1/transactions/{task.id}/abort"


def test_a_commit_is_asked_for_until_there_is_an_answer() -> None:
    version = Version("app", "query", 3, "sha256:b", "sha256:a")
    parts = Parts(offsets={"g": {"s": (1, 2)}}, transactions=["x:1", "y:2"])
    played = Played(commit_calls.commit_version(KnownStreams(SITE), version, parts), [LOST, DONE])
    assert played.result.duplicate
    assert msgspec.json.decode(played.sends[1].request.body or b"") == {
        "sink": {
            "app": "app",
            "query_id": "query",
            "version": 3,
            "input": "sha256:b",
            "previous": "sha256:a",
        },
        "offsets": {"g": {"s": {"from": print_offset(1), "to": print_offset(2)}}},
        "transactions": [{"id": "x", "epoch": 1}, {"id": "y", "epoch": 2}],
    }
    silent = Played(
        commit_calls.commit_version(KnownStreams(SITE), version, Parts()), [LOST, False]
    )
    assert isinstance(silent.error, errors.Indeterminate)
    assert "same version again" in silent.error.advice


def test_sinks_are_read_as_what_they_are() -> None:
    listed = answer(200, b'{"sinks":[{"app":"a","query_id":"q","last_version":4}]}')
    assert play(commit_calls.list_sink_infos(SITE), listed) == [SinkInfo("a", "q", 4)]
    rebound = answer(200, b'{"app":"a","query_id":"r","last_version":2}')
    assert play(commit_calls.rebind_sink_info(SITE, "a", "r", 2), rebound).query_id == "r"
    assert (
        refused(commit_calls.show_sink_info(SITE, "a"), answer(200, b'{"app":1}'))
        is errors.ProtocolError
    )
    assert (
        refused(commit_calls.show_sink_info(SITE, "a"), answer(200, b'{"app":'))
        is errors.DamagedResponse
    )


def test_what_a_lost_try_has_forgotten_is_forgotten() -> None:
    unknown = problem(404, "unknown_sink")
    assert Played(server_calls.forget_sink(SITE, "a"), [LOST, unknown]).error is None
    assert Played(server_calls.forget_sink(SITE, "a"), [unknown]).error is not None
