"""The tables of the checkpoint. Each is declared once."""

import subprocess
import sys

from semel.journal.store import DIGESTED, LOADED, LOOKED_UP, TABLES
from semel.machine.state import STATE_TABLES, Dirty


def test_the_names_on_disk_do_not_change() -> None:
    assert set(LOADED) == {
        *("streams", "tails", "producers", "keys", "registry", "segments", "transactions"),
        *("txn_streams", "parts", "positions", "snapshots", "sinks", "policies"),
        *("tokens", "owners", "topics", "groups", "members", "shares"),
        *("subscriptions", "wakes", "links"),
    }
    assert set(LOOKED_UP) == {"outcomes", "outcome_order", "outcome_owners", "aborted"}
    assert set(TABLES) == {"meta", "index", *DIGESTED}
    assert len(TABLES) == len(set(TABLES)) == 28


def test_every_changed_row_belongs_to_a_declared_table() -> None:
    others = {"forgotten_sink_cutoffs", "dropped", "pruned", "decided"}
    assert set(Dirty.__struct_fields__) == STATE_TABLES.keys() | others


def test_keys_are_read_back_and_sort_like_their_bytes() -> None:
    samples: dict[str, list[object]] = {
        "streams": [1, 2, 256, 1 << 40],
        "registry": ["", "a", "b", "é"],
        "producers": [(1, "b"), (2, "a"), (256, ""), (256, "é")],
        "parts": [(1, 2), (1, 256), (2, 0)],
        "policies": ["", "a", "a/b", "é"],
        "tokens": ["0123456789ab", "AAAAAAAAAAAA", "zyxwvutsrqpo"],
        "owners": [
            ("producer", 0, "p"),
            ("producer", 1, "é"),
            ("producer", 256, ""),
            ("sink", 0, "app"),
            ("transaction", 0, "t"),
            ("subscription", 0, "é"),
        ],
        "topics": [1, 2, 256],
        "groups": ["", "a/b", "é"],
        "members": [("", "m"), ("g\0", "m"), ("g", "a"), ("g\0h", "m"), ("g", "é"), ("h", "")],
        "shares": [(1, "b"), (2, "a"), (256, "é")],
        "subscriptions": ["", "a/b", "é"],
        "wakes": ["", "a/b", "é"],
        "links": [(1, "b"), (2, "a"), (256, "é")],
    }
    for name, keys in samples.items():
        codec = STATE_TABLES[name].key
        encoded = [codec.encode(key) for key in keys]
        assert encoded == sorted(encoded)
        assert [codec.decode(key) for key in encoded] == keys


def test_a_new_table_is_one_declaration() -> None:
    """A declared table is stored, loaded, absorbed, verified and removed with its stream."""
    program = [sys.executable, "-m", "tests.unit.journal.extra_table"]
    subprocess.run(program, check=True, timeout=60)
