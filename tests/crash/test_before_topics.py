"""A directory from before there were topics and members of groups can be opened and used.

`tests/data/directory_before_topics.tgz` was written by the previous version, in two runs. The first
run was stopped cleanly, so that its rows are in the checkpoint (`stored`); the second was killed,
so that its frames are replayed (`replayed`). In each run, the JSON stream `RUN/s` got an append of
the producer `p`, with epoch 0 and sequence 0, one with the idempotency key `key`, and two more
messages. `RUN/orders/0` is an empty stream. The groups `group-RUN` and `held-RUN` have the
position 1 in `RUN/s`. The open transaction `open-RUN` of `w-open-RUN` names the position 2 for the
first group, and the prepared transaction `prepared-RUN` the position 3 for the second one.
"""

import subprocess

import pytest

from semel.model.checksum import crc32c
from tests.crash.old_directories import RUNS, OldDirectory
from tests.spec.process import SEMEL, Server, offset_of
from tests.spec.topic_calls import Member, Topic
from tests.spec.txn_calls import call

BEFORE = "directory_before_topics"
pytestmark = pytest.mark.crash


def offsets(server: Server, group: str) -> dict[str, str]:
    found = server.ask("GET", f"/v1/groups/{group}/offsets")
    assert found.status == 200, found
    moved: dict[str, str] = found.json["offsets"]
    return moved


def end_txn(server: Server, run: str, name: str, action: str = "commit") -> tuple[int, object]:
    document = {"transaction_epoch": 1, "operator": True}
    answer = call(server, "POST", f"/v1/transactions/{name}-{run}/{action}", document)
    return answer.status, answer.code if answer.status >= 400 else None


@RUNS
def test_everything_of_before_is_there_and_no_format_is_raised(old: OldDirectory, run: str) -> None:
    old.verify()
    server = old.start()
    assert server.stream(f"{run}/s").pages() == [b'["a","k","b","c"]']
    again = server.stream(f"{run}/s").post(
        b'["a"]',
        content_type="application/json",
        producer_id="p",
        producer_epoch=0,
        producer_seq=0,
    )
    assert again.status == 204, "a duplicate"
    path = f"{run}/s"
    for name in ("group", "held"):
        assert offsets(server, f"{name}-{run}") == {path: offset_of(1)}
    assert end_txn(server, run, "open") == (200, None)
    assert end_txn(server, run, "prepared") == (200, None)
    assert offsets(server, f"group-{run}") == {path: offset_of(2)}
    assert offsets(server, f"held-{run}") == {path: offset_of(3)}
    assert server.ask("GET", "/v1/topics").json["topics"] == []
    server.signal(15)
    server.wait()
    assert old.format == 1, "an older version can still open it"
    old.verify()


@RUNS
def test_a_topic_needs_paths_that_are_free(old: OldDirectory, run: str) -> None:
    server = old.start()
    taken = Topic(server, f"{run}/orders").put(2)
    assert (taken.status, taken.code) == (409, "stream_exists")
    assert old.format == 1, "an older version can still open it"
    topic = Topic(server, f"{run}/new").create(2)
    topic.post_keyed(1, "k")
    assert old.format == 3, "an older version refuses it"
    server.kill()
    old.verify()
    server = old.start()
    assert [1] in Topic(server, f"{run}/new").texts()


@RUNS
def test_what_is_refused_raises_no_format(old: OldDirectory, run: str) -> None:
    server = old.start()
    group = f"/v1/groups/group-{run}/members"
    for names in ({"streams": ["none"]}, {"topics": ["none"]}, {"topics": [f"{run}/s"]}):
        assert call(server, "POST", group, names).status in (404, 409)
    assert Topic(server, f"{run}/new").put(0).status == 400
    assert call(server, "POST", group, {"patterns": ["a//b"]}).status == 400
    server.signal(15)
    server.wait()
    assert old.format == 1, "an older version can still open it"


@RUNS
def test_a_group_of_before_gets_members_that_go_on_where_it_was(
    old: OldDirectory, run: str
) -> None:
    server = old.start()
    path = f"{run}/s"
    member = Member(server, f"group-{run}", streams=[path])
    (assigned,) = member.state["assigned"]
    assert (assigned["position"], assigned["version"]) == (offset_of(1), 1)
    assert end_txn(server, run, "open") == (409, "group_is_shared")
    assert member.move(path, 2).status == 200
    server.kill()
    assert old.format == 3
    old.verify()
    server = old.start()
    assert offsets(server, f"group-{run}") == {path: offset_of(2)}
    member.server = server
    assert member.beat().status == 200
    assert member.epochs == {path: 1}


@RUNS
def test_a_stream_is_given_to_a_member_when_the_transaction_of_before_is_decided(
    old: OldDirectory, run: str
) -> None:
    server = old.start()
    path = f"{run}/s"
    member = Member(server, f"held-{run}", streams=[path])
    assert member.state["assigned"] == []
    assert end_txn(server, run, "prepared") == (200, None)
    while not member.state["assigned"]:
        assert member.wait().status == 200
    (assigned,) = member.state["assigned"]
    assert (assigned["position"], assigned["epoch"]) == (offset_of(3), 1)
    server.signal(15)
    server.wait()
    old.verify()


def test_a_directory_of_a_newer_version_is_refused_and_not_called_damaged(
    old: OldDirectory,
) -> None:
    identity = old.path / "identity"
    body = bytearray(identity.read_bytes()[:-4])
    body[11] = 5
    identity.write_bytes(body + crc32c(bytes(body)).to_bytes(4, "little"))
    for arguments in (("serve", "--port", "0"), ("doctor",), ("doctor", "--verify")):
        done = subprocess.run(
            [str(SEMEL), *arguments, "--data", str(old.path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 65, arguments
        said = done.stdout + done.stderr
        assert "a newer version of semel has written this directory, in the format 5" in said
        assert "CORRUPT" not in said
