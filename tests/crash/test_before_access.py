"""A directory from before there were tokens and owners can be opened, and access switched on.

`tests/data/directory_before_access.tgz` was written by the previous version, in two runs. The first
run was stopped cleanly, so that its rows are in the checkpoint (`stored`); the second was killed,
so that its frames are replayed (`replayed`). In each run, the stream `RUN/s` got an append of the
producer `p`, with epoch 0 and sequence 0, one with the idempotency key `key`, a committed
transaction `commit-RUN`, an aborted one `abort-RUN`, a prepared one `prepared-RUN`, and the commit
of version 1 of the sink `sink-RUN`. There are the registration `registered-RUN`, the position of
`group-RUN`, and the policy of `RUN/off`. An application wrote to `__semel/notes`.
"""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.crash.old_directories import RUNS, OldDirectory
from tests.spec.process import SEMEL, Answer, Server

BEFORE = "directory_before_access"
pytestmark = pytest.mark.crash


def semel(*arguments: str) -> str:
    done = subprocess.run(
        [str(SEMEL), *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make_token(data: Path, *options: str) -> str:
    """Store a token in a directory that no server uses. Return the text of the token."""
    printed = semel("tokens", "create", "--data", str(data), *options)
    return next(word for word in printed.split() if word.startswith("semel_"))


def end(server: Server) -> None:
    server.signal(15)
    assert server.wait() == 0, server.stderr


def append_again(server: Server, run: str, **headers: Any) -> Answer:
    """Repeat the append of the producer `p`."""
    return server.ask(
        "POST",
        f"/v1/stream/{run}/s",
        b'["a"]',
        content_type="application/json",
        producer_id="p",
        producer_epoch=0,
        producer_seq=0,
        **headers,
    )


def everything(server: Server, **headers: Any) -> dict[str, object]:
    """Return all that was stored before, except what the append of a repeat can change."""
    shown: dict[str, object] = {}
    for run in ("stored", "replayed"):
        for target in (
            f"/v1/stream/{run}/s?offset=-1",
            f"/v1/producers?id=registered-{run}",
            f"/v1/transactions/commit-{run}",
            f"/v1/transactions/abort-{run}",
            f"/v1/transactions/prepared-{run}",
            f"/v1/groups/group-{run}/offsets",
        ):
            answer = server.ask("GET", target, **headers)
            assert answer.status == 200, (target, answer)
            shown[target] = lasting(answer.json)
    for target in ("/v1/sinks", "/v1/policies", "/v1/stream/__semel/notes?offset=-1"):
        answer = server.ask("GET", target, **headers)
        assert answer.status == 200, (target, answer)
        shown[target] = lasting(answer.json)
    return shown


def lasting(value: Any) -> Any:
    """Return a JSON value without ages, and without owners, which nothing has.

    Owners are shown only while access is on.
    """
    if isinstance(value, dict):
        assert value.get("owner") is None
        omitted = ("age_ms", "idle_ms", "owner")
        return {name: lasting(item) for name, item in value.items() if name not in omitted}
    return [lasting(item) for item in value] if isinstance(value, list) else value


def test_a_directory_of_before_has_access_off_and_no_tokens(old: OldDirectory) -> None:
    old.verify()
    server = old.start()
    assert server.ask("GET", "/health").json["access"] == "off"
    assert server.ask("GET", "/v1/tokens").json["tokens"] == []
    shown = everything(server)
    for run in ("stored", "replayed"):
        messages = ["a", "k", "commit", "abort", "prepared", "sunk"]
        assert shown[f"/v1/stream/{run}/s?offset=-1"] == messages
    for run in ("stored", "replayed"):
        assert append_again(server, run).status == 204, "a duplicate"
    end(server)
    old.verify()


def test_everything_of_before_is_there_after_a_token_is_stored_and_a_restart(
    old: OldDirectory,
) -> None:
    server = old.start()
    before = everything(server)
    end(server)
    token = make_token(old.path, "--admin")
    for _ in range(2):
        server = old.start()
        assert server.ask("GET", "/health").json["access"] == "on"
        assert server.ask("GET", "/v1/stream/stored/s").status == 401
        assert append_again(server, "stored").status == 401
        admin = {"authorization": f"Bearer {token}"}
        assert everything(server, **admin) == before
        end(server)
        old.verify()


@RUNS
def test_what_was_there_before_belongs_to_who_uses_it_first(old: OldDirectory, run: str) -> None:
    make_token(old.path, "--admin")
    scopes = ("--scope", f"stream:{run}/*:read,write", "--scope", "transaction:*:describe")
    first = {"authorization": f"Bearer {make_token(old.path, '--principal', 'first', *scopes)}"}
    other = {"authorization": f"Bearer {make_token(old.path, '--principal', 'other', *scopes)}"}
    server = old.start()
    assert append_again(server, run, **first).status == 204
    refused = append_again(server, run, **other)
    assert (refused.status, refused.code) == (403, "forbidden")
    commit = f"/v1/transactions/prepared-{run}/commit"
    body = b'{"transaction_epoch": 1}'
    assert server.ask("POST", commit, body, **first).status == 200
    server.kill()  # the owner is in the journal only
    server = old.start()
    assert append_again(server, run, **other).status == 403
    assert append_again(server, run, **first).status == 204
    end(server)
    old.verify()


@RUNS
def test_with_deny_what_was_there_before_needs_an_admin(old: OldDirectory, run: str) -> None:
    admin = {"authorization": f"Bearer {make_token(old.path, '--admin')}"}
    scopes = ("--scope", f"stream:{run}/*:read,write")
    writer = {"authorization": f"Bearer {make_token(old.path, '--principal', 'first', *scopes)}"}
    server = old.start("--unowned", "deny")
    assert append_again(server, run, **writer).status == 403
    assert append_again(server, run, **admin).status == 204
