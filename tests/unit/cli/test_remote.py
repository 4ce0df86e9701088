"""The message and exit code of a command whose call failed."""

import pytest

from semel.cli.options import error_report
from semel.cli.output import EXIT_NOT_UNDERSTOOD, EXIT_REFUSED, EXIT_UNAVAILABLE
from semel.client import errors
from semel.client.errors import ClientError
from semel.client.flows import error_of
from semel.client.transport import TRUST_ADVICE

PROBLEM = {"content-type": "application/problem+json"}


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (errors.StreamNotFound("404 stream_not_found: none", status=404), EXIT_REFUSED, "semel ls"),
        (
            errors.NotSupported("no such page"),
            EXIT_NOT_UNDERSTOOD,
            "check that --url points to a semel server",
        ),
        (errors.ProtocolError("nonsense"), EXIT_NOT_UNDERSTOOD, "check that --url"),
        (errors.Unavailable("refused"), EXIT_UNAVAILABLE, "semel serve"),
        (errors.Unavailable("503 overloaded", status=503), EXIT_UNAVAILABLE, "later"),
        (
            errors.Indeterminate("reset"),
            EXIT_UNAVAILABLE,
            "it is unknown whether the server applied the request",
        ),
    ],
)
def test_every_failure_has_its_code_and_says_what_to_do(
    error: ClientError, code: int, words: str
) -> None:
    said = error_report(error)
    assert said.code == code
    assert words in said.format_message()


def test_a_certificate_that_is_not_trusted_is_no_reason_to_start_a_server() -> None:
    said = error_report(errors.Unavailable(f"not trusted; {TRUST_ADVICE}")).format_message()
    assert "semel serve" not in said
    assert "SSL_CERT_FILE" in said
    assert "tls=" not in said, "only Python has it"


def test_a_refusal_is_told_with_its_code_and_facts_once() -> None:
    body = (
        b'{"code":"producer_seq_conflict","message":"11 is missing","applied":"no",'
        b'"expected_seq":11,"received_seq":1}'
    )
    message = error_report(error_of(409, PROBLEM, body)).format_message()
    assert message.startswith("producer_seq_conflict: 11 is missing (received_seq 1); send again")


def test_a_refusal_that_may_have_been_applied_says_so() -> None:
    error = errors.Refused("500 odd: no", status=500, code="odd", applied=errors.UNKNOWN)
    assert (
        error_report(error).format_message()
        == "odd: no; perhaps the server has applied the request"
    )


def test_what_the_client_found_out_itself_gets_no_advice_of_the_server() -> None:
    error = errors.StreamGone("it was deleted and created again")
    assert error_report(error).format_message() == "stream_gone: it was deleted and created again"
