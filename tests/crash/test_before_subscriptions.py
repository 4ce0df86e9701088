"""A directory from before there were subscriptions can be opened and used.

`tests/data/directory_before_subscriptions.tgz` was written by the previous version, in two runs.
The first run was stopped cleanly, so that its rows are in the checkpoint (`stored`); the second was
killed, so that its frames are replayed (`replayed`). In each run, the JSON stream `RUN/s` got three
messages, the topic `RUN/orders` with two partitions three messages, and the group `group-RUN` a
member that moved its position in `RUN/s` to 1. `RUN/wakes` is an empty JSON stream. The JSON stream
`RUN/t` has one message, of the open transaction `open-RUN` of the producer `w-RUN`.
"""

from typing import Any

import pytest

from tests.crash.old_directories import RUNS, OldDirectory
from tests.spec.process import Answer, Server, offset_of
from tests.spec.topic_calls import Topic
from tests.spec.txn_calls import call

BEFORE = "directory_before_subscriptions"
JSON = "application/json"
pytestmark = pytest.mark.crash


def subscription(server: Server, method: str, suffix: str = "", document: Any = None) -> Answer:
    return call(server, method, f"/v1/stream/__ds/subscriptions/worker{suffix}", document)


def subscribe(server: Server, run: str) -> Answer:
    document = {
        "type": "pull-wake",
        "pattern": f"{run}/**",
        "streams": [f"{run}/s", f"{run}/later"],
        "wake_stream": f"{run}/wakes",
    }
    return subscription(server, "PUT", document=document)


def acked(server: Server) -> dict[str, str]:
    shown = subscription(server, "GET").json
    return {each["path"]: each["acked_offset"] for each in shown["streams"]}


@RUNS
def test_everything_of_before_is_there_and_no_format_is_raised(old: OldDirectory, run: str) -> None:
    old.verify()
    server = old.start()
    assert server.stream(f"{run}/s").pages() == [b'["a","b","c"]']
    assert sum(map(len, Topic(server, f"{run}/orders").texts())) == 3
    offsets = server.ask("GET", f"/v1/groups/group-{run}/offsets").json["offsets"]
    assert offsets == {f"{run}/s": offset_of(1)}
    refused = subscription(server, "PUT", document={"type": "pull-wake", "streams": ["a"]})
    assert refused.status == 400
    server.signal(15)
    server.wait()
    assert old.format == 3, "an older version can still open it"
    old.verify()


@RUNS
def test_streams_of_before_are_linked_where_they_end(old: OldDirectory, run: str) -> None:
    server = old.start()
    assert subscribe(server, run).status == 201
    assert old.format == 4, "an older version refuses it"
    offsets = acked(server)
    assert offsets.pop(f"{run}/s") == offset_of(3)
    assert offsets.pop(f"{run}/t") == offset_of(0), "its message is not stable"
    assert offsets.pop(f"{run}/later") == "-1", "it does not exist"
    assert offsets.keys() == {f"{run}/orders/0", f"{run}/orders/1"}
    assert subscription(server, "POST", "/claim", {"worker": "w"}).status == 409
    document = {"transaction_epoch": 1, "operator": True}
    committed = call(server, "POST", f"/v1/transactions/open-{run}/commit", document)
    assert committed.status == 200
    server.stream(f"{run}/later").put(b'["new"]', content_type=JSON)
    server.kill()
    old.verify()
    server = old.start()
    assert len(server.stream(f"{run}/wakes").pages()) == 1
    claimed = subscription(server, "POST", "/claim", {"worker": "w"}).json
    assert [each["path"] for each in claimed["streams"]] == [f"{run}/t"]
    server.signal(15)
    server.wait()
    old.verify()
    server = old.start()
    assert {f"{run}/t", f"{run}/later"} <= acked(server).keys()
    assert subscription(server, "DELETE").status == 204
    server.signal(15)
    server.wait()
    assert old.format == 4
    old.verify()
