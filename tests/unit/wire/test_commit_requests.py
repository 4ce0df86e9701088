"""One-shot commits: valid and invalid request bodies."""

from typing import Any

import msgspec
import pytest

from semel.model.commands import Batch, Commit, CommitAppend, ListedTxn, PositionMove, SinkTag
from semel.model.limits import BATCH_MESSAGES_MAX, MESSAGE_KEY_BYTES_MAX, MIB
from semel.model.messages import keys_of
from semel.model.offsets import print_offset
from semel.model.steps import STEP_BYTES, finish
from semel.wire import commits, documents
from semel.wire.commits import parse_commit
from semel.wire.problems import Problem, parser
from semel.wire.schema.commits import CommitLists
from tests.unit.wire.builders import JSON, refused

TYPES = {"j": "application/json", "t": "text/plain"}
WHO: dict[str, Any] = {"producer_id": "p", "producer_epoch": 1, "producer_seq": 7}


def raw(body: bytes) -> object:
    steps = parse_commit(JSON, body, now_ms=5, type_of=TYPES.get)
    return parser(finish)(steps)


def parse(**document: Any) -> object:
    return raw(msgspec.json.encode(document))


def parsed(**document: Any) -> Commit:
    found = parse(**document)
    assert isinstance(found, Commit), found
    return found


def appended(stream: str, messages: bytes) -> CommitAppend:
    body = b'{"appends": [{"stream": "%b", "messages": %b}]}' % (stream.encode(), messages)
    found = raw(body)
    assert isinstance(found, Commit), found
    return found.appends[0]


def test_a_whole_commit() -> None:
    found = parsed(
        **WHO,
        appends=[{"stream": "j", "messages": [1]}],
        transactions=[{"id": "x", "epoch": 2}],
        offsets={
            "g": {"j": 3, "t": {"from": print_offset(1), "to": 2}},
            "h": {"j": {"from": 0, "to": 1, "incarnation": "i"}, "t": {"to": 1}},
        },
        **{"if": {"j": print_offset(4)}},
    )
    assert found == Commit(
        5,
        "p",
        1,
        7,
        None,
        (CommitAppend("j", "application/json", Batch(b"1")),),
        (ListedTxn("x", 2),),
        (
            PositionMove("g", "j", 3),
            PositionMove("g", "t", 2, 1),
            PositionMove("h", "j", 1, 0, "i"),
            PositionMove("h", "t", 1),
        ),
        (("j", 4),),
        found.digest,
    )


def test_the_digest_is_of_appends_and_positions_and_nothing_else() -> None:
    appends = [{"stream": "j", "messages": [1]}, {"stream": "t", "messages": ["x"]}]
    first = parsed(**WHO, appends=appends, offsets={"g": {"j": 1, "t": 2}})
    moved = {"g": {"t": {"from": 0, "to": 2}, "j": print_offset(1)}}
    again = parsed(**WHO, appends=appends, offsets=moved, **{"if": {"j": 0}})
    assert again.digest == first.digest
    others = [
        parsed(**WHO, appends=appends),
        parsed(**WHO, appends=appends[::-1], offsets={"g": {"j": 1, "t": 2}}),
        parsed(**WHO, appends=appends, offsets={"g": {"j": 1, "t": 3}}),
        parsed(**WHO, appends=appends[:1], offsets={"g": {"j": 1, "t": 2}}),
    ]
    assert len({first.digest, *(other.digest for other in others)}) == 5


def test_a_sink_s_commit() -> None:
    sink = {"app": "A", "query_id": "Q", "version": 17}
    assert parsed(sink=sink).sink == SinkTag("A", "Q", 17)
    full = {**sink, "input": "sha256:1", "previous": None}
    assert parsed(sink=full).sink == SinkTag("A", "Q", 17, "sha256:1")


def test_json_messages_are_kept_byte_for_byte() -> None:
    append = appended("j", b'[ {"a" : 1.0, "a":2} , [1, 2],"x" ]')
    assert append.batch is not None
    assert append.batch.payload == b'{"a" : 1.0, "a":2},[1, 2],"x"'
    assert append.batch.count == 3
    assert append.body_error is None


def test_messages_of_other_streams_are_texts_or_base64() -> None:
    one = appended("t", '["caf\u00e9"]'.encode())
    assert one == CommitAppend("t", "text/plain", Batch("caf\u00e9".encode()))
    two = appended("t", b'["ab", {"base64": "AP8B"}]')
    lengths = b"\x02\0\0\0\x03\0\0\0"
    assert two.batch == Batch(b"ab\x00\xff\x01", 2, lengths)


@pytest.mark.parametrize(
    ("stream", "messages"),
    [
        ("j", b"7"),
        ("j", b"[]"),
        ("j", b"[" + b"[" * 70 + b"]" * 70 + b"]"),
        ("t", b'"x"'),
        ("t", b"[]"),
        ("t", b"[7]"),
        ("t", b'[""]'),
        ("t", b'[{"base64": "?"}]'),
        ("t", b'[{"base64": "AA==", "more": 1}]'),
        ("t", b'[{"base64": "\\u00e9"}]'),
        ("t", b"[" + b",".join([b'"x"'] * (BATCH_MESSAGES_MAX + 1)) + b"]"),
    ],
)
def test_what_is_wrong_with_messages_speaks_at_its_place(stream: str, messages: bytes) -> None:
    append = appended(stream, messages)
    assert append.batch is None
    assert append.body_error


def test_messages_for_a_stream_that_is_not_there_are_read_as_json() -> None:
    assert appended("none", b"[1]") == CommitAppend("none", "application/json", Batch(b"1"))


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"more": 1}, "bad_body"),
        ({"appends": [{"stream": "j"}]}, "bad_body"),
        ({"appends": [{"stream": "j", "messages": [], "more": 1}]}, "bad_body"),
        ({"transactions": [{"id": "x"}]}, "bad_body"),
        ({"offsets": {"g": {"j": {"from": 1}}}}, "bad_body"),
        ({"offsets": {"g": 1}}, "bad_body"),
        ({"sink": {"app": "A"}}, "bad_body"),
        ({"producer_id": 1}, "bad_body"),
        ({"producer_id": "\u0085"}, "invalid_request"),
        ({"transactions": [{"id": "", "epoch": 1}]}, "invalid_request"),
        ({"offsets": {"g": {"j": "1"}}}, "invalid_offset"),
        ({"offsets": {"g": {"j": {"from": -1, "to": 1}}}}, "invalid_offset"),
        ({"offsets": {"g": {"j": {"from": 1, "to": "x"}}}}, "invalid_offset"),
        ({"if": {"j": "now"}}, "invalid_offset"),
    ],
)
def test_a_commit_that_means_nothing_is_refused(document: dict[str, Any], code: str) -> None:
    assert refused(parse(**document)) == (400, code)


def test_a_compressed_body_is_refused() -> None:
    typed = parse_commit({"content-type": "text/plain"}, b"{}", now_ms=5, type_of=TYPES.get)
    assert refused(parser(finish)(typed)) == (415, "unsupported_media_type")
    encoded = parse_commit({"content-encoding": "br"}, b"x", now_ms=5, type_of=TYPES.get)
    assert refused(parser(finish)(encoded)) == (415, "unsupported_encoding")


def test_a_body_without_a_bottom_is_refused() -> None:
    deep = b'{"appends": [{"stream": "j", "messages": ' + b"[" * 100_000
    assert refused(raw(deep)) == (400, "bad_body")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (rb'{"producer_id": "\ud800x"}', "an escaped lone surrogate"),
        (
            rb'{"appends": [{"stream": "\ud800", "messages": ["\ud800"]}]}',
            "an escaped lone surrogate",
        ),
        (
            rb'{"appends": [{"stream": "j", "messages": ["\ud800", %s]}]}'
            % b",".join(b'"\\u%04x"' % code for code in range(0xE000, 0xE010)),
            "an escaped lone surrogate",
        ),
        (rb'{"appends": "\ud83d\ude00"}', "Expected `array`"),
        (rb'{"producer_id": "\ud83d\ude00', "truncated"),
        (b'{"producer_id": "x', "truncated"),
        (b'{"producer_id": "\xff"}', "utf-8"),
    ],
)
def test_half_a_surrogate_pair_is_told_from_a_body_that_was_cut(body: bytes, words: str) -> None:
    problem = raw(body)
    assert isinstance(problem, Problem)
    assert problem.code == "bad_body"
    assert words in problem.message


@pytest.mark.parametrize(
    "messages",
    [
        rb'["\ud800"]',
        rb'["\\ud800\ud800", {"\uDC00": "\ud83d\ude00\udfff"}, "\ue000\ue001"]',
        b'["%s", "\\ud800", "%s"]' % (b"\\n" * 40_000, b"x" * 1_100_000),  # read in steps
    ],
    ids=["one", "several", "long"],
)
def test_half_a_surrogate_pair_stays_in_its_message(messages: bytes) -> None:
    command = raw(
        b'{"producer_id": "p", "producer_epoch": 0, "producer_seq": 0,'
        b' "appends": [{"stream": "j", "messages": [7]}, {"stream": "j", "messages": %s}]}'
        % messages
    )
    assert isinstance(command, Commit)
    payloads = [append.batch.payload for append in command.appends if append.batch is not None]
    assert payloads == [b"7", messages[1:-1].replace(b", ", b",")]


# ---- long bodies ---------------------------------------------------------------------------------

ENTRIES = 60_000


@pytest.mark.parametrize(
    "body",
    [
        b'{"offsets":{"g":{%b}}}' % b",".join([b'"s":0'] * ENTRIES),
        b'{"offsets":{%b}}' % b",".join([b'"g":{}'] * ENTRIES),
        b'{"if":{%b}}' % b",".join([b'"s":0'] * ENTRIES),
        b'{"transactions":[%b]}' % b",".join([b'{"id":"t","epoch":0}'] * ENTRIES),
        b'{"appends":[%b]}' % b",".join([b'{"stream":"j","messages":[0]}'] * ENTRIES),
    ],
    ids=["positions", "groups", "conditions", "transactions", "appends"],
)
def test_a_list_that_is_too_long_is_refused_before_it_is_parsed(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = []
    real = documents.decode_document

    def decode(text: bytes, kind: type[Any]) -> Any:
        kinds.append(kind)
        return real(text, kind)

    monkeypatch.setattr(commits, "decode_document", decode)
    problem = raw(body)
    assert isinstance(problem, Problem)
    assert (problem.code, kinds) == ("invalid_request", [CommitLists])
    assert "too many entries" in problem.message


def test_messages_do_not_count_as_entries() -> None:
    numbers = b"[" + b"1," * 150_000 + b"1]"
    body = b'{"offsets": {"g": {"s": 5}}, "appends": [{"stream": "j", "messages": [%b]}]}' % numbers
    found = raw(body)
    assert isinstance(found, Commit)
    assert found.appends[0].batch == Batch(numbers)
    assert refused(raw(body[:-1])) == (400, "bad_body")
    assert refused(raw(body.replace(b'"appends": [{', b'"appends": {"x": {'))) == (400, "bad_body")


def test_too_many_texts_are_refused() -> None:
    texts = b"[" + b'"a",' * BATCH_MESSAGES_MAX + b'"a"]'
    found = raw(b'{"appends": [{"stream": "t", "messages": %b}]}' % texts)
    assert isinstance(found, Commit)
    assert "10000 messages" in str(found.appends[0].body_error)


def test_many_long_appends_are_read_in_steps() -> None:
    append = b'{"stream": "j", "messages": ["%b"]}' % (b"x" * STEP_BYTES)
    body = b'{"appends": [' + b",".join([append] * 10) + b"]}"
    steps = parse_commit(JSON, body, now_ms=5, type_of=TYPES.get)
    assert len(list(steps)) == 10


def test_a_long_commit_is_read_in_steps() -> None:
    body = b'{"appends": [{"stream": "t", "messages": ["%b"]}]}' % (b"x" * MIB)
    assert len(list(parse_commit(JSON, body, now_ms=5, type_of=TYPES.get))) == 3


def test_texts_that_are_nested_too_deep_for_the_stack_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The document was read with other calls on the stack, so it may have been read as a whole."""

    def too_deep(_array: bytes, _limit: int) -> None:
        raise RecursionError

    monkeypatch.setattr(commits, "first_elements", too_deep)
    found = appended("t", b"[[]]")
    assert found.batch is None
    assert found.body_error == commits._NO_TEXT


# ---- keys, and members of groups -----------------------------------------------------------------


def keyed(stream: str, messages: list[Any], keys: list[Any]) -> CommitAppend:
    found = parsed(appends=[{"stream": stream, "messages": messages, "keys": keys}])
    return found.appends[0]


def test_each_message_can_have_a_key() -> None:
    for stream, messages in (("j", [1, 2, 3]), ("t", ["x", "y", "z"])):
        append = keyed(stream, messages, ["ä", {"base64": "AAE="}, None])
        assert append.batch is not None
        assert list(keys_of(append.batch.extras, 3)) == ["ä".encode(), b"\x00\x01", None]
    without = keyed("j", [1], [None]).batch
    assert without is not None
    assert without.extras == b""


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (["a"], "one element for each"),
        (["a", {"base64": "?"}], "not valid base64"),
        (["a", "x" * (MESSAGE_KEY_BYTES_MAX + 1)], "at most"),
    ],
)
def test_bad_keys_are_refused_with_the_append(keys: list[Any], reason: str) -> None:
    append = keyed("j", [1, 2], keys)
    assert append.batch is None
    assert reason in (append.body_error or "")


def test_keys_are_part_of_the_digest() -> None:
    def digest(**more: Any) -> int:
        return parsed(**WHO, appends=[{"stream": "j", "messages": [1], **more}]).digest

    assert len({digest(), digest(keys=["a"]), digest(keys=["b"]), digest(keys=[None])}) == 4


def test_keys_stay_when_surrogates_are_put_back() -> None:
    body = b'{"appends": [{"stream": "j", "messages": ["\\ud800"], "keys": ["k"]}]}'
    found = raw(body)
    assert isinstance(found, Commit)
    batch = found.appends[0].batch
    assert batch is not None
    assert (batch.payload, list(keys_of(batch.extras, 1))) == (b'"\\ud800"', [b"k"])


def test_a_long_list_of_keys_is_refused_before_it_is_read() -> None:
    pad = "x" * STEP_BYTES
    keys = [None] * (BATCH_MESSAGES_MAX + 1)
    appends = [{"stream": "t", "messages": [pad], "keys": keys}]
    assert refused(parse(appends=appends)) == (400, "bad_body")
    fitting = [{"stream": "t", "messages": [pad], "keys": [None]}]
    assert parsed(appends=fitting).appends[0].batch is not None
    wrong = [{"stream": "t", "messages": [pad], "keys": 7}]
    assert refused(parse(appends=wrong)) == (400, "bad_body")


def test_moves_are_made_by_a_member() -> None:
    found = parsed(offsets={"g": {"j": 1, "t": 2}}, member="m", epochs={"j": 7})
    assert found.positions == (
        PositionMove("g", "j", 1, member="m", member_epoch=7),
        PositionMove("g", "t", 2),
    )
    plain = parsed(offsets={"g": {"j": 1, "t": 2}})
    assert found.digest == plain.digest, "the member is a condition, and no part of the commit"
    for more in ({"member": "m"}, {"epochs": {"j": 1}}, {"member": "m", "epochs": {"x": 1}}):
        refusal = parse(offsets={"g": {"j": 1}}, **more)
        assert refused(refusal) == (400, "invalid_request")
