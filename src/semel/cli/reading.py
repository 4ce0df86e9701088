"""Reads that keep the messages apart, for `semel read` and `semel tail`."""

from collections.abc import Iterator

from semel.client.client import Client
from semel.client.errors import ClientError
from semel.client.flows import OnRetry
from semel.client.reading import Reader
from semel.client.values import Message


def pages(client: Client, path: str, offset: str) -> Iterator[list[Message]]:
    """Read up to the end as it is, an answer at a time."""
    reader = Reader(client.stream(path).calls, offset, is_live=False)
    while (page := client.run(reader.next_page())) is not None:
        yield page


def live_pages(
    client: Client, path: str, offset: str, on_retry: OnRetry
) -> Iterator[list[Message]]:
    """Read what is there and what comes, an answer at a time; `on_retry` once it has begun.

    Only the first answer must come in time: after that, a server that is gone is waited for.
    """

    def on_trouble(error: ClientError, tries: int) -> None:
        if reader.has_begun:
            on_retry(error, tries)

    reader = Reader(client.stream(path).calls, offset, is_live=True, on_retry=on_trouble)
    client.run(reader.begin())
    while True:
        timeout = None if reader.has_begun else client.timeout
        page = client.driver.run(reader.next_page(), timeout)
        if page is None:
            return
        yield page
