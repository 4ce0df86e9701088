"""A directory from before positions had versions can be opened, and its transactions committed.

`tests/data/directory_before_versions.tgz` was written by the previous version, in two runs. The
first run was stopped cleanly, so that its rows are in the checkpoint; the second was killed, so
that its frames are replayed. In each run, `set` was moved by a plain set and `moved` by a
transaction, and two prepared transactions named the same position, which was allowed then.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from semel import Client, errors
from semel.client.group_calls import Positions, group_page
from semel.model.offsets import print_offset
from semel.testing import local
from tests.crash.old_directories import unpack

pytestmark = pytest.mark.crash


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with (
        local(unpack("directory_before_versions", tmp_path)) as server,
        Client(server.url) as client,
    ):
        yield client


def shown(client: Client, group: str) -> Positions:
    return client.run(group_page(client.site, group))


def test_positions_of_before_have_version_0_and_count_from_there(client: Client) -> None:
    # The first move of each is in the checkpoint, without a version; the second is replayed.
    for group, offset in (("set", 5), ("moved", 6)):
        found = shown(client, group)
        assert found.offsets == {"in": print_offset(offset)}
        assert found.versions == {"in": 1}
    with client.transaction(producer_id="anybody") as txn:
        txn.commit_offsets("set", {"in": (5, 6, None, 1)})
    assert shown(client, "set").versions == {"in": 2}


@pytest.mark.parametrize("group", ["stored", "replayed"])
def test_transactions_prepared_before_hold_their_positions_one_after_the_other(
    client: Client, group: str
) -> None:
    for number, to in ((1, 7), (2, 8)):
        with pytest.raises(errors.UnstableOffsets) as caught:
            client.group(group).set({"in": 0})
        assert caught.value.transaction_id == f"{group}-{number}"
        result = client.commit_prepared(f"{group}-{number}:1")
        assert result.offsets == {group: {"in": print_offset(to)}}
    assert shown(client, group).versions == {"in": 2}
    assert shown(client, group).pending == {}
    client.group(group).set({"in": 0})
