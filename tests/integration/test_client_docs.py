"""The examples of docs/reference/python.md, written for `Client`, with an `AsyncClient` as well.

tests/docs/test_docs.py runs them unchanged. Here `semel.Client` and `semel.local()` return an
AsyncClient with synchronous calls.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import semel
from semel.client.aio.stream import AsyncStream
from semel.client.async_driver import AsyncTail
from semel.client.values import Message
from tests.docs.test_docs import ROOT, Example, examples
from tests.integration.both import Waiting

PAGE = ROOT / "docs/reference/python.md"
EXAMPLES = [
    example
    for example in examples(PAGE, PAGE.read_text())
    if example.expected is not None and "asyncio" not in example.fence.body
]


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) >= 8


@pytest.mark.timeout(60)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"line {example.fence.line}")
def test_an_example_for_the_client_works_with_an_async_client(
    example: Example, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Waiting] = []

    def client(url: str, **options: Any) -> Waiting:
        made.append(Waiting(url, **options))
        return made[-1]

    @contextmanager
    def local() -> Iterator[Waiting]:
        with semel.local() as server, client(server.url) as waiting:
            yield waiting

    def begun_tail(stream: AsyncStream, *arguments: Any, **options: Any) -> AsyncTail:
        """Begin the tail in the call, like `Tail`; programs use `async with` instead."""
        found = tail(stream, *arguments, **options)
        (owner,) = (each for each in made if each.owns(stream.client))
        owner.waiting(found.__aenter__())
        return found

    commit, reject, tail = Message.commit, Message.reject, AsyncStream.tail
    monkeypatch.setattr(AsyncStream, "tail", begun_tail)
    monkeypatch.setattr(Message, "commit", lambda message: made[-1].waiting(commit(message)))
    monkeypatch.setattr(
        Message, "reject", lambda message, reason: made[-1].waiting(reject(message, reason))
    )
    public = {name: getattr(semel, name) for name in semel.__all__}
    shim = SimpleNamespace(**{**public, "Client": client, "local": local, "errors": semel.errors})
    monkeypatch.setitem(sys.modules, "semel", shim)
    exec(compile(example.fence.body, f"{PAGE.name}:{example.fence.line}", "exec"), {})
    assert made
    assert capsys.readouterr().out == example.expected
