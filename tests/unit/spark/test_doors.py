"""One client for each server and process."""

import os

from semel.spark.options import SinkOptions, client_for, parse_sink


def options(port: int, **more: str) -> SinkOptions:
    return parse_sink({"url": f"http://127.0.0.1:{port}", "retryTimeout": "5s", **more})


def test_a_process_keeps_one_client_for_each_server_and_token() -> None:
    client = client_for(options(1))
    assert client_for(options(1)) is client
    assert client_for(options(1, token="token")) is not client
    assert client_for(options(2)) is not client
    assert client.timeout == 5.0


def test_a_fork_gets_a_client_of_its_own() -> None:
    client = client_for(options(1))
    child = os.fork()
    if not child:
        os._exit(7 if client_for(options(1)) is client else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
