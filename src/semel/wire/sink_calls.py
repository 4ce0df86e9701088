"""Sinks: looked at, rebound, forgotten. They come into being by their first commit."""

from collections.abc import Sequence

from msgspec import Struct

from semel.machine.txn.views import SinkView
from semel.model.outcomes import Outcome
from semel.model.outcomes_txn import SinkChanged, UnknownSink
from semel.model.transactions import RebindSink
from semel.wire.documents import read_document
from semel.wire.headers import Headers
from semel.wire.problems import MalformedRequest, Problem
from semel.wire.rendering import Response
from semel.wire.responses import json_response, outcome_response
from semel.wire.results import sink_document


class _Rebind(Struct, forbid_unknown_fields=True):
    query_id: str
    last_version: int


def parse_rebind(app: str, headers: Headers, body: bytes, *, now_ms: int) -> RebindSink | Problem:
    """Read `{"query_id", "last_version"}`."""
    try:
        wanted = read_document(headers, body, _Rebind)
    except MalformedRequest as refusal:
        return refusal.problem
    return RebindSink(now_ms, app, wanted.query_id, wanted.last_version)


def rebound_response(outcome: Outcome, command: RebindSink) -> Response:
    """Answer a rebinding with how things stand now."""
    if not isinstance(outcome, SinkChanged):
        return outcome_response(outcome)
    found = {
        "app": command.app,
        "query_id": command.query_id,
        "last_version": command.last_version,
    }
    return json_response(200, found)


def sinks_response(views: Sequence[SinkView]) -> Response:
    """List sinks."""
    return json_response(200, {"sinks": [sink_document(view) for view in views]})


def sink_response(view: SinkView | None) -> Response:
    """Show one sink, with the versions that are kept."""
    if view is None:
        return outcome_response(UnknownSink())
    return json_response(200, sink_document(view, is_full=True))
