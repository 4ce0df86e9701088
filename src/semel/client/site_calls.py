"""The calls that are about a server and not one stream, and semel's own about producers."""

from typing import Any, Final

from msgspec import Struct

from semel.client.addresses import query
from semel.client.calls import Site, StreamCalls
from semel.client.documents import decoded, get, post, require_page
from semel.client.errors import ProtocolError
from semel.client.flows import Flow, Kind, ask
from semel.client.outgoing import Request
from semel.client.values import ProducerClaim, ProducerState, Registration, StreamEntry

_LISTING_COUNT: Final = 1_000
_PRODUCERS: Final = "/v1/producers"


class Listing(Struct, frozen=True):
    """A page of a listing; `next` is where the next one begins."""

    streams: list[StreamEntry]
    next: str | None = None


class _Producers(Struct, frozen=True):
    producers: list[ProducerState]
    next: str | None = None


def list_streams(
    site: Site, prefix: str, after: str | None, limit: int = _LISTING_COUNT
) -> Flow[Listing]:
    """Ask for a page of the streams whose paths begin so."""
    target = site.address.target("/v1/streams") + query(
        prefix=prefix or None, after=after, limit=limit
    )
    answer = yield from get(site, target)
    page = decoded(answer, Listing)
    _require_progress(page.next, after)
    return page


def health(site: Site) -> Flow[dict[str, Any]]:
    """Ask how the server is."""
    answer = yield from get(site, site.address.target("/health"))
    return decoded(answer, dict[str, Any])


def producers(calls: StreamCalls, producer_id: str | None) -> Flow[list[ProducerState]]:
    """Ask what the server knows of a stream's producers."""
    found: list[ProducerState] = []
    after = None
    limit = _LISTING_COUNT if producer_id is None else None
    while True:
        target = calls.site.address.target(_PRODUCERS) + query(
            stream=calls.path, id=producer_id, after=after, limit=limit
        )
        answer = yield from get(calls.site, target)
        page = decoded(answer, _Producers)
        found += page.producers
        if page.next is None:
            return found
        _require_progress(page.next, after)
        after = page.next


def register_producer(site: Site, producer_id: str | None) -> Flow[Registration]:
    """Get an id, or the next epoch of one; asking again only raises it once more."""
    wanted = {} if producer_id is None else {"producer_id": producer_id}
    asked = yield from post(site, site.address.target(_PRODUCERS), wanted)
    return decoded(asked.expect(200, 201), Registration)


def claim_producer(
    calls: StreamCalls, producer_id: str, session: str, mode: str
) -> Flow[ProducerClaim]:
    """Take a producer over, and learn what is stored; the same session again changes nothing."""
    wanted = {"stream": calls.path, "producer_id": producer_id, "session": session, "mode": mode}
    target = calls.site.address.target(f"{_PRODUCERS}/claim")
    asked = yield from post(calls.site, target, wanted)
    return decoded(asked.expect(200), ProducerClaim)


def explain(
    calls: StreamCalls,
    producer_id: str,
    seq: int | str,
    *,
    epoch: int | None = None,
    session: str | None = None,
    mode: str | None = None,
) -> Flow[dict[str, Any]]:
    """Ask what would become of an append, and why."""
    target = calls.site.address.target(f"{_PRODUCERS}/explain") + query(
        stream=calls.path, id=producer_id, seq=seq, epoch=epoch, session=session, mode=mode
    )
    answer = yield from get(calls.site, target)
    return decoded(answer, dict[str, Any])


def forget_producer(calls: StreamCalls, producer_id: str) -> Flow[None]:
    """Let a stream forget a producer."""
    target = calls.site.address.target(_PRODUCERS) + query(stream=calls.path, id=producer_id)
    request = Request("DELETE", target)
    asked = yield from ask(request, Kind.REPEATABLE, retries=calls.site.retries)
    require_page(asked)
    asked.expect(200, 204)


def _require_progress(next_page: str | None, after: str | None) -> None:
    if next_page is not None and after is not None and next_page <= after:
        raise ProtocolError("a list does not go on after its page")
