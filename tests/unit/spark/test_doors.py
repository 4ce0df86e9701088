"""One client for each server and process."""

import os

from semel.spark.client_cache import client_for


def test_a_process_keeps_one_client_for_each_server_and_token() -> None:
    client = client_for("http://127.0.0.1:1", None, 5.0)
    assert client_for("http://127.0.0.1:1", None, 5.0) is client
    assert client_for("http://127.0.0.1:1", "token", 5.0) is not client
    assert client_for("http://127.0.0.1:2", None, 5.0) is not client
    assert client.timeout == 5.0


def test_a_fork_gets_a_client_of_its_own() -> None:
    client = client_for("http://127.0.0.1:1", None, 5.0)
    child = os.fork()
    if not child:
        os._exit(7 if client_for("http://127.0.0.1:1", None, 5.0) is client else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
