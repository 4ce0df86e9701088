"""The form of error responses below `/v1/stream/__ds/`: `{"error": {"code": ..., "message": ...}}`.

It is that of the Durable Streams protocol. Every malformed request has the code INVALID_REQUEST
there, and its `cause` is the code that the request would have elsewhere.
"""

from http import HTTPStatus
from typing import Final

import msgspec

from semel.model.messages import JSON_MEDIA_TYPE
from semel.model.outcomes import Refusal
from semel.wire.problems import Problem
from semel.wire.refusal_table_subscriptions import INVALID_REQUEST, URL_REJECTED
from semel.wire.rendering import Response, problem_of

_OWN_CODES: Final = (INVALID_REQUEST, URL_REJECTED)


def control_problem(problem: Problem) -> Response:
    """Return the response for a problem of a request below `/v1/stream/__ds/`."""
    error: dict[str, object] = {"code": problem.code, "message": problem.message}
    if problem.status == HTTPStatus.BAD_REQUEST and problem.code not in _OWN_CODES:
        error |= {"code": INVALID_REQUEST, "cause": problem.code}
    # A failure of the server does not say by its status whether the request was applied.
    if problem.applied != "no" or problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        error["applied"] = problem.applied
    error |= problem.facts
    headers = [
        ("Content-Type", JSON_MEDIA_TYPE),
        ("Cache-Control", "no-store"),
        *problem.headers,
    ]
    return Response(problem.status, headers, msgspec.json.encode({"error": error}))


def control_refusal(refusal: Refusal) -> Response:
    """Return the response for the refusal of a request below `/v1/stream/__ds/`."""
    return control_problem(problem_of(refusal))
