"""Helpers that build requests and slices, and check responses."""

import struct
from collections.abc import Mapping, Set
from typing import Any

from semel.model.commands import Append, Create
from semel.model.slices import Slice
from semel.model.steps import finish
from semel.wire.problems import Problem, parser
from semel.wire.rendering import Response
from semel.wire.requests import append_of, parse_put, plan_post

NONE: frozenset[str] = frozenset()
JSON: Mapping[str, str] = {"content-type": "application/json"}


def named(**values: str) -> dict[str, str]:
    """Return headers from keyword arguments: `producer_id` becomes `producer-id`."""
    return {name.replace("_", "-"): value for name, value in values.items()}


def piece(offset: int, *messages: bytes, joined: bool = False, time: int = 7) -> Slice:
    count = len(messages)
    lengths = struct.pack(f"<{count}I", *map(len, messages)) if count > 1 else b""
    payload = (b"," if joined else b"").join(messages)
    return Slice(offset, count, payload, lengths, joined and count > 1, time)


def parse_post(
    path: str,
    headers: Mapping[str, str],
    repeated: Set[str],
    body: bytes,
    *,
    now_ms: int,
    is_strict: bool = False,
) -> Append | Problem:
    plan = plan_post(path, headers, repeated, is_strict=is_strict)
    return plan if isinstance(plan, Problem) else append_of(plan, body, now_ms=now_ms)


def post(body: bytes = b"x", /, **values: str) -> Append | Problem:
    headers = {"content-type": "text/plain", **named(**values)}
    return parse_post("s", headers, NONE, body, now_ms=5)


def posted(body: bytes = b"x", /, **values: str) -> Append:
    command = post(body, **values)
    assert isinstance(command, Append), command
    return command


@parser
def parse_create(
    headers: Mapping[str, str], repeated: Set[str], body: bytes, **options: Any
) -> Create:
    return finish(parse_put("s", headers, repeated, body, now_ms=5, incarnation="i", **options))


def put(body: bytes = b"", /, **values: str) -> Create | Problem:
    return parse_create(named(**values), NONE, body)


def created(body: bytes = b"", /, **values: str) -> Create:
    command = put(body, **values)
    assert isinstance(command, Create), command
    return command


def refused(answer: object) -> tuple[int, str]:
    assert isinstance(answer, Problem), answer
    return answer.status, answer.code


def headers_of(response: Response) -> dict[str, str]:
    found = dict(response.headers)
    assert len(found) == len(response.headers), "a header occurs twice"
    return found
