"""PUT and POST requests become commands, or a problem that names the first error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from semel.model.commands import Append, Batch, Create, ForkRequest, ProducerTag, SwitchDedup
from semel.model.limits import (
    BODY_BYTES_MAX,
    IDEMPOTENCY_KEY_BYTES_MAX,
    NUMBER_MAX,
    STREAM_SEQ_BYTES_MAX,
)
from semel.model.offsets import print_offset
from semel.model.steps import finish
from semel.model.validation import find_invalid_field
from semel.wire.bodies import encode_batch
from semel.wire.headers import BATCH, SINGLE
from semel.wire.problems import Problem, parser
from semel.wire.requests import AppendPlan, append_of, append_steps, parse_patch, plan_post
from tests.unit.wire.builders import (
    NONE,
    created,
    named,
    parse_create,
    parse_post,
    post,
    posted,
    put,
    refused,
)

JSON = "application/json"
PRODUCER = {"producer_id": "p", "producer_epoch": "1", "producer_seq": "0"}


# ---- POST ----------------------------------------------------------------------------------------


def test_a_plain_append_is_one_message() -> None:
    assert posted(b"hello") == Append("s", 5, "text/plain", Batch(b"hello"))


def test_every_header_of_an_append_finds_its_field() -> None:
    command = posted(
        b"[1,2]",
        content_type="Application/JSON; a=b",
        stream_closed="TRUE",
        stream_seq="a-1",
        if_match=f'"{print_offset(7)}"',
        **PRODUCER,
    )
    tag = ProducerTag("p", 0, 0, 1)
    batch = Batch(b"1,2", 2, b"\x01\0\0\0\x01\0\0\0")
    assert command == Append(
        "s", 5, "Application/JSON; a=b", batch, None, True, tag, "a-1", 7, None
    )
    assert posted(idempotency_key="k").key == "k"


def test_strictness_is_the_server_s_choice() -> None:
    headers = named(content_type="text/plain", **PRODUCER)
    command = parse_post("s", headers, NONE, b"x", now_ms=5, is_strict=True)
    assert isinstance(command, Append)
    assert command.producer == ProducerTag("p", 0, 0, 1, is_strict=True)


def test_a_lone_close_ignores_its_content_type() -> None:
    """Protocol 1.4.2."""
    close = Append("s", 5, close=True)
    assert posted(b"", stream_closed="true") == close
    assert posted(b"", stream_closed="true", content_type="no type at all") == close


@pytest.mark.parametrize(
    ("body", "reason"),
    [(b"[]", "the array of messages is empty"), (b"{", "not JSON"), (b'"\xff"', "UTF-8")],
)
def test_what_is_wrong_in_a_json_body_travels_in_the_command(body: bytes, reason: str) -> None:
    """Design 4, step 14: a bad body is reported after the checks that need the stream."""
    command = posted(body, content_type=JSON)
    assert command.batch is None
    assert reason in str(command.body_error)


def test_a_batch_brings_the_stream_s_own_media_type() -> None:
    """Design 7.2."""
    command = posted(encode_batch("text/plain", [b"a", b"bc"]), content_type=BATCH)
    assert command.content_type == "text/plain"
    assert command.batch == Batch(b"abc", 2, b"\x01\0\0\0\x02\0\0\0")
    wrong = posted(encode_batch(JSON, [b"1,2"]), content_type=f"{BATCH}; v=1")
    assert (wrong.content_type, wrong.batch) == (JSON, None)
    assert wrong.body_error == "a message is not exactly one JSON value"
    assert refused(post(b"SMB1", content_type=BATCH)) == (400, "bad_body")


def test_an_append_without_body_is_refused() -> None:
    """Protocol 1.4 row 5."""
    assert refused(post(b"")) == (400, "empty_body")
    assert refused(post(b"", stream_closed="yes")) == (400, "empty_body")


def test_a_body_without_content_type_is_refused() -> None:
    """Protocol 1.4 row 6."""
    assert refused(post(content_type="")) == (400, "missing_content_type")
    assert refused(parse_post("s", {}, NONE, b"x", now_ms=0)) == (400, "missing_content_type")


def test_a_body_has_4_mib_at_most() -> None:
    assert posted(b"x" * BODY_BYTES_MAX).batch is not None
    problem = post(b"x" * (BODY_BYTES_MAX + 1))
    assert refused(problem) == (413, "body_too_large")
    assert isinstance(problem, Problem)
    assert problem.facts == {"bytes_max": BODY_BYTES_MAX}


def test_checks_come_in_the_order_of_the_design() -> None:
    """Design 4, steps 1 to 4: of several errors, the first in this order is reported."""
    large = b"x" * (BODY_BYTES_MAX + 1)
    assert refused(post(large, content_type="", producer_id="")) == (
        400,
        "producer_headers_incomplete",
    )
    assert refused(post(large, content_type="", if_match="x")) == (400, "invalid_header")
    assert refused(post(b"", content_type="", stream_seq="")) == (400, "invalid_header")
    assert refused(post(b"", content_type="")) == (400, "empty_body")
    assert refused(post(large, content_type="")) == (400, "missing_content_type")
    assert refused(post(large, content_type=JSON)) == (413, "body_too_large")


@pytest.mark.parametrize(
    "bad",
    [
        {"stream_seq": ""},
        {"stream_seq": "s" * (STREAM_SEQ_BYTES_MAX + 1)},
        {"idempotency_key": ""},
        {"idempotency_key": "k" * (IDEMPOTENCY_KEY_BYTES_MAX + 1)},
        {"if_match": "now"},
        {"content_type": "text"},
        {**PRODUCER, "producer_seq": "1.5"},
    ],
)
def test_a_bad_header_is_refused(bad: dict[str, str]) -> None:
    assert refused(post(**bad)) == (400, "invalid_header")


def test_a_key_beside_a_producer_is_refused() -> None:
    """Design 6."""
    assert refused(post(idempotency_key="k", **PRODUCER)) == (400, "idempotency_key_conflict")


def test_a_compressed_body_is_refused() -> None:
    assert refused(post(content_encoding="gzip")) == (415, "unsupported_encoding")
    assert refused(put(b"x", content_encoding="br")) == (415, "unsupported_encoding")


@pytest.mark.parametrize("name", sorted(SINGLE))
def test_a_header_given_twice_is_refused(name: str) -> None:
    """Reliability 5.4 "Headers": a duplicated header."""
    headers = {"content-type": "text/plain", name: "1, 1"}
    twice = frozenset({name})
    assert refused(parse_post("s", headers, twice, b"x", now_ms=0)) == (400, "invalid_header")
    created_twice = parse_create(headers, twice, b"")
    assert refused(created_twice) == (400, "invalid_header")


def test_a_list_given_twice_is_fine() -> None:
    headers = {"content-type": "text/plain", "accept": "a/b, c/d"}
    assert isinstance(parse_post("s", headers, {"accept"}, b"x", now_ms=0), Append)


# ---- PUT -----------------------------------------------------------------------------------------


def test_a_bare_creation_has_no_configuration() -> None:
    """Protocol 1.3: the machine sets the default media type."""
    assert created() == Create("s", 5, "i")


def test_every_header_of_a_creation_finds_its_field() -> None:
    command = created(b'[{"a": 1}]', content_type=JSON, stream_ttl="60", stream_closed="True")
    assert command == Create("s", 5, "i", JSON, 60_000, None, True, Batch(b'{"a": 1}'))
    dated = created(b"hi", content_type="text/plain", stream_expires_at="1970-01-01T00:00:01Z")
    assert dated == Create("s", 5, "i", "text/plain", None, 1000, False, Batch(b"hi"))
    assert created(stream_ttl="0").ttl_ms == 0


def test_an_empty_array_creates_an_empty_stream() -> None:
    """Protocol 1.3."""
    command = created(b" [ ] ", content_type=JSON)
    assert (command.batch, command.body_error) == (None, None)
    assert created(b"[1", content_type=JSON).body_error is not None


@pytest.mark.parametrize(
    "text", ["abc", "-1", "00060", "+60", "60.5", "1e3", "", str(NUMBER_MAX // 1000 + 1)]
)
def test_a_ttl_is_whole_seconds(text: str) -> None:
    """Protocol 1.3 row 2."""
    assert refused(put(stream_ttl=text)) == (400, "invalid_header")


def test_the_longest_ttl_can_be_stored() -> None:
    assert find_invalid_field(created(stream_ttl=str(NUMBER_MAX // 1000))) is None


def test_two_expiries_are_refused_before_either_is_read() -> None:
    """Protocol 1.3 row 1."""
    assert refused(put(stream_ttl="x", stream_expires_at="y")) == (400, "expiry_conflict")
    assert refused(put(stream_expires_at="soon")) == (400, "invalid_header")


def test_no_stream_has_the_batch_type() -> None:
    assert refused(put(content_type=BATCH.upper())) == (400, "invalid_header")


def test_first_content_has_a_limit_too() -> None:
    assert refused(put(b"x" * (BODY_BYTES_MAX + 1))) == (413, "body_too_large")


# ---- forks ---------------------------------------------------------------------------------------


def fork_of(**values: str) -> ForkRequest | None:
    return created(stream_forked_from="/v1/stream/src", **values).fork


def test_a_fork_names_its_source_by_path() -> None:
    """Protocol 1.13."""
    assert fork_of() == ForkRequest("src")
    assert fork_of(stream_fork_offset=print_offset(0)) == ForkRequest("src", 0)
    assert fork_of(stream_fork_offset="9" * 16 + "_" + "9" * 16) == ForkRequest("src", NUMBER_MAX)
    both = fork_of(stream_fork_offset=print_offset(3), stream_fork_sub_offset="2")
    assert both == ForkRequest("src", 3, 2)
    assert fork_of(stream_fork_sub_offset="0") == ForkRequest("src")


@pytest.mark.parametrize(
    "source",
    ["", "src", "/src", "http://h/v1/stream/src", "/v1/stream/", "/v1/stream/../x",
     "/v1/stream/__ds/x", "/v1/stream/a?b", "/v1/stream/a b"],
)  # fmt: skip
def test_a_source_must_be_a_stream_of_this_server(source: str) -> None:
    assert refused(put(stream_forked_from=source)) == (400, "invalid_header")


@pytest.mark.parametrize("text", ["-1", "abc", "1.5", "05", "+1", ""])
def test_a_sub_offset_is_a_canonical_number(text: str) -> None:
    """Protocol 1.3 row 4."""
    bad = put(stream_forked_from="/v1/stream/src", stream_fork_sub_offset=text)
    assert refused(bad) == (400, "invalid_header")


@pytest.mark.parametrize("text", ["", "-1", "now", "5", "0_0", "abc"])
def test_a_fork_offset_is_a_whole_offset(text: str) -> None:
    bad = put(stream_forked_from="/v1/stream/src", stream_fork_offset=text)
    assert refused(bad) == (400, "invalid_header")


@pytest.mark.parametrize(
    "values", [{"stream_fork_sub_offset": "0"}, {"stream_fork_offset": print_offset(0)}]
)
def test_fork_headers_need_a_source(values: dict[str, str]) -> None:
    """Protocol 1.3 row 4: even for 0."""
    problem = put(**values)
    assert refused(problem) == (400, "invalid_header")
    assert isinstance(problem, Problem)
    assert "Stream-Forked-From" in problem.message


def test_a_fork_s_first_content_is_read_as_its_source_s_type() -> None:
    headers = named(stream_forked_from="/v1/stream/src")
    asked = []

    def source_type(path: str) -> str | None:
        asked.append(path)
        return JSON

    command = parse_create(headers, NONE, b"[1]", source_type=source_type)
    assert isinstance(command, Create)
    assert (command.content_type, command.batch, asked) == (JSON, Batch(b"1"), ["src"])
    bare = parse_create(headers, NONE, b"", source_type=source_type)
    assert isinstance(bare, Create)
    assert (bare.content_type, asked) == (None, ["src"])
    own = created(b"[1]", stream_forked_from="/v1/stream/src")
    assert (own.content_type, own.batch) == (None, Batch(b"[1]"))


# ---- any input -----------------------------------------------------------------------------------

VALUES = st.text(max_size=30) | st.sampled_from(["0", "1", "true", "text/plain", JSON, BATCH])


@given(st.dictionaries(st.sampled_from(sorted(SINGLE)), VALUES), st.binary(max_size=20))
def test_whatever_is_sent_becomes_a_sound_command_or_a_problem(
    headers: dict[str, str], body: bytes
) -> None:
    appended = parse_post("s", headers, NONE, body, now_ms=5)
    made = parse_create(headers, NONE, body)
    for command in (appended, made):
        if not isinstance(command, Problem):
            assert find_invalid_field(command) is None


# ---- PATCH, and the same setting in PUT ----------------------------------------------------------


# rows: P19
@pytest.mark.parametrize(("value", "dedup"), [("on", True), ("off", False), ("inherit", None)])
def test_the_recognition_of_duplicates_is_switched(value: str, dedup: bool | None) -> None:
    command = parse_patch("s", {"stream-dedup": value}, NONE, now_ms=5)
    assert command == SwitchDedup("s", 5, dedup)
    assert created(stream_dedup=value).dedup is dedup


@pytest.mark.parametrize("value", ["", "On", "true", "1"])
def test_a_switch_is_on_or_off_and_nothing_else(value: str) -> None:
    assert refused(parse_patch("s", {"stream-dedup": value}, NONE, now_ms=5)) == (
        400,
        "invalid_header",
    )
    assert refused(put(stream_dedup=value)) == (400, "invalid_header")


def test_a_patch_without_anything_to_change_or_with_two_is_refused() -> None:
    assert refused(parse_patch("s", {}, NONE, now_ms=5)) == (400, "invalid_header")
    twice = parse_patch("s", {"stream-dedup": "on"}, frozenset({"stream-dedup"}), now_ms=5)
    assert refused(twice) == (400, "invalid_header")


def test_a_creation_that_says_nothing_inherits() -> None:
    command = parse_create({}, NONE, b"")
    assert isinstance(command, Create)
    assert command.dedup is None


# ---- plans ---------------------------------------------------------------------------------------


def planned(**values: str) -> AppendPlan:
    plan = plan_post("s", {"content-type": "text/plain", **named(**values)}, NONE)
    assert isinstance(plan, AppendPlan)
    return plan


@pytest.mark.parametrize("mode", ["dense", "sparse"])
def test_a_plan_is_used_again_with_another_sequence_number(mode: str) -> None:
    claim = {"producer_id": "p", "producer_epoch": "3", "producer_mode": mode}
    plan = planned(**claim, producer_seq="4", producer_cursor="c")
    again = append_of(plan, b"y", now_ms=5, seq=b"0017")
    parsed = posted(b"y", **claim, producer_seq="17", producer_cursor="c")
    assert parsed.producer is not None
    assert again == replace(parsed, producer=replace(parsed.producer, is_checked=True))
    assert append_of(plan, b"y", now_ms=5) == posted(
        b"y", **claim, producer_seq="4", producer_cursor="c"
    )


def test_a_plan_without_a_producer_has_no_use_for_a_sequence_number() -> None:
    assert append_of(planned(), b"y", now_ms=5, seq=b"3") == posted(b"y")


def test_a_bad_media_type_is_no_fault_of_a_plan_without_a_body() -> None:
    plan = planned(content_type="text", stream_closed="true")
    assert isinstance(append_of(plan, b"", now_ms=5), Append)
    assert refused(append_of(plan, b"x", now_ms=5)) == (400, "invalid_header")


def test_only_an_append_with_nothing_special_has_the_common_answer() -> None:
    claim = {"producer_id": "p", "producer_epoch": "3", "producer_seq": "4"}
    assert planned().is_common
    assert planned(**claim).is_common
    assert not planned(stream_closed="true").is_common
    assert not planned(idempotency_key="k").is_common
    assert not planned(**{f"x_{name}": value for name, value in claim.items()}).is_common


# ---- long bodies, in steps -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (JSON, b'[{"a": [1]}, 2]'),
        (JSON, b"[]"),
        (JSON, b"[1"),
        (BATCH, encode_batch(JSON, [b"1", b"[2]"])),
        (BATCH, encode_batch("text/plain", [b"1", b"2"])),
        (BATCH, b"x"),
        ("", b"1"),
    ],
)
def test_in_steps_a_body_means_the_same(kind: str, body: bytes) -> None:
    plan = planned(content_type=kind) if kind else plan_post("s", {}, NONE)
    assert isinstance(plan, AppendPlan)
    at_once = append_of(plan, body, now_ms=5, seq=b"")
    assert parser(finish)(append_steps(plan, body, now_ms=5, seq=b"")) == at_once
