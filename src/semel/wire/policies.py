"""Requests about policies, and the headers that say where a stream's setting comes from."""

import msgspec

from semel.model.limits import POLICY_PREFIX_BYTES_MAX
from semel.model.offsets import print_offset
from semel.model.policies import DedupSource, DeletePolicy, SetPolicy
from semel.wire.documents import read_document
from semel.wire.headers import Headers, print_instant
from semel.wire.paths import check_segments, escape_path, parse_query
from semel.wire.problems import bad_request, parser
from semel.wire.schema import PolicyEntry, PolicyRequest

_SWITCHES = {"on": True, "off": False}


# ---- requests ------------------------------------------------------------------------------------


@parser
def parse_set_policy(query: str, headers: Headers, body: bytes, *, now_ms: int) -> SetPolicy:
    """Parse a request to set the policy of a prefix."""
    prefix = _required_prefix(query)
    dedup = read_document(headers, body, PolicyRequest).dedup
    if dedup is msgspec.UNSET:
        message = 'the policy sets nothing: send {"dedup": "on"} or {"dedup": "off"}'
        raise bad_request("bad_body", message, field="dedup")
    if dedup not in _SWITCHES:
        raise bad_request("bad_body", "'dedup' must be 'on' or 'off'", field="dedup")
    return SetPolicy(now_ms, prefix, _SWITCHES[dedup])


@parser
def parse_delete_policy(query: str, *, now_ms: int) -> DeletePolicy:
    """Parse a request to delete the policy of a prefix."""
    return DeletePolicy(now_ms, _required_prefix(query))


def _required_prefix(query: str) -> str:
    prefix = _prefix_in(query)
    if prefix is None:
        raise bad_request(
            "invalid_query",
            "'prefix' is required: ?prefix=orders, or ?prefix= for the whole server",
            field="prefix",
        )
    return prefix


@parser
def parse_policy_query(query: str) -> tuple[str | None]:
    """Parse a request for policies. The prefix is None if the request asks for all policies."""
    return (_prefix_in(query),)


def _prefix_in(query: str) -> str | None:
    prefix = parse_query(query, ("prefix",)).get("prefix")
    if not prefix:
        return prefix
    if len(prefix.encode()) > POLICY_PREFIX_BYTES_MAX:
        reason = f"it has more than {POLICY_PREFIX_BYTES_MAX} bytes"
    else:
        fault = "it is not UTF-8" if "\ufffd" in prefix else check_segments(prefix)
        if fault is None:
            return prefix
        reason = fault
    message = f"the prefix is invalid: {reason}; write whole segments, such as orders/eu"
    raise bad_request("invalid_query", message, field="prefix")


# ---- responses -----------------------------------------------------------------------------------


def print_switch(is_on: bool) -> str:
    """Return `on` for True and `off` for False."""
    return "on" if is_on else "off"


def policy_entry(prefix: str, dedup: bool | None, changed_ms: int) -> PolicyEntry:
    """Return a policy as responses show it."""
    shown = None if dedup is None else print_switch(dedup)
    return PolicyEntry(prefix, shown, print_instant(changed_ms))


def dedup_fields(dedup_from: int | None, source: DedupSource) -> list[tuple[str, str]]:
    """Return the headers about a stream's recognition of duplicates, without `Stream-Dedup: on`.

    There are none if duplicates are recognised from the beginning by the built-in setting.
    """
    if dedup_from == 0 and source == DedupSource():
        return []
    fields = []
    if dedup_from is None:
        fields.append(("Stream-Dedup", "off"))
    elif dedup_from:
        fields.append(("Stream-Dedup-From", print_offset(dedup_from)))
    fields.append(("Stream-Dedup-Source", source.name))
    if source.prefix is not None:
        fields.append(("Stream-Dedup-Policy", f'"{escape_path(source.prefix)}"'))
    if source.pending is not None:
        fields.append(("Stream-Dedup-Pending", print_switch(source.pending)))
    return fields
