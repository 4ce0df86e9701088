"""Reading frames as they come, for those who take them apart by themselves. Pure: flows."""

from msgspec import Struct

from semel.client.addresses import query
from semel.client.calls import StreamCalls
from semel.client.errors import NotSupported, ProtocolError
from semel.client.flows import Flow, Kind, ask
from semel.client.outgoing import Request
from semel.client.txn_values import READ_COMMITTED
from semel.model.media import normalise
from semel.model.offsets import parse_offset
from semel.wire.media import FRAMES


class FramesPage(Struct, frozen=True):
    """One answer in the frames format, of the stream of this incarnation."""

    body: bytes
    incarnation: str
    next_offset: int


def frames_page(calls: StreamCalls, offset: str) -> Flow[FramesPage]:
    """Read what is committed from an offset on, about 1 MiB of it."""
    target = calls.target + query(offset=offset, isolation=READ_COMMITTED)
    request = Request("GET", target, (("Accept", FRAMES),))
    asked = yield from ask(request, Kind.READ, retries=calls.site.retries)
    answer = asked.expect(200)
    headers = answer.headers
    incarnation = headers.get("stream-incarnation")
    if incarnation is None or normalise(headers.get("content-type", "")) != FRAMES:
        raise NotSupported("this server does not know frames; only semel has them")
    next_offset = parse_offset(headers.get("stream-next-offset", ""))
    if next_offset is None:
        raise ProtocolError("the answer has no Stream-Next-Offset")
    return FramesPage(answer.body, incarnation, next_offset)
