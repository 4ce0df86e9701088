"""Options are parsed once, and invalid ones are refused with a suggestion."""

import pickle

import pytest

from semel.client.credentials import TokenFile
from semel.spark.offsets import EARLIEST, EARLIEST_NUMBER, LATEST, LATEST_NUMBER
from semel.spark.options import SparkOptionError, client_for, parse_sink, parse_source

URL = "http://127.0.0.1:4437"
READ = {"url": URL, "stream": "orders"}
TOPIC = {"url": URL, "topic": "orders"}
WRITE = {"url": URL, "stream": "totals"}


def test_a_read_needs_an_address_and_a_stream_and_the_rest_has_defaults() -> None:
    options = parse_source(READ)
    assert (options.url, options.token, options.streams) == (URL, None, ("orders",))
    assert (options.starts, options.ends, options.pattern) == (EARLIEST, None, None)
    assert (options.min_partitions, options.max_offsets_per_trigger) == (1, None)
    assert options.is_loss_fatal
    assert not options.has_headers
    assert options.retry_seconds == 120


def test_every_option_of_a_read_is_read_whatever_its_case() -> None:
    options = parse_source(
        {
            "PATH": URL,
            "token": "secret",
            "SUBSCRIBE": "b, a,b",
            "startingoffsets": '{"a": 5, "b": -1}',
            "endingOffsets": '{"a": "0000000000000000_0000000000000009"}',
            "maxOffsetsPerTrigger": "1000",
            "minpartitions": "4",
            "failOnDataLoss": "FALSE",
            "includeHeaders": "true",
            "retryTimeout": "2m",
            "checkpointlocation": "/tmp/c",
            "queryname": "q",
        }
    )
    assert options.streams == ("a", "b")
    assert (options.starts.of("a"), options.starts.of("b")) == (5, LATEST_NUMBER)
    assert options.ends is not None
    assert (options.ends.of("a"), options.ends.of("b")) == (9, LATEST_NUMBER)
    assert (options.max_offsets_per_trigger, options.min_partitions) == (1000, 4)
    assert (options.is_loss_fatal, options.has_headers) == (False, True)
    assert (options.retry_seconds, options.token) == (120, "secret")


def test_a_pattern_and_a_time_may_say_what_to_read() -> None:
    options = parse_source({"url": URL, "subscribePattern": "eu/.*", "startingTimestamp": "17"})
    assert (options.streams, options.pattern) == ((), "eu/.*")
    assert options.starting_timestamp_ms == 17


def test_offsets_of_a_pattern_may_name_any_stream() -> None:
    options = parse_source({"url": URL, "subscribePattern": "a.*", "startingOffsets": '{"ab": 3}'})
    assert (options.starts.of("ab"), options.starts.of("ac")) == (3, EARLIEST_NUMBER)


@pytest.mark.parametrize(
    "text", ['{"orders": {"0": 23, "1": -2}}', '{"orders/0": 23, "orders": {"1": -2}}']
)
def test_offsets_of_a_topic_may_be_by_partition_or_by_stream(text: str) -> None:
    options = parse_source({**TOPIC, "startingOffsets": text})
    assert (options.topic, options.streams, options.pattern) == ("orders", (), None)
    assert dict(options.starts.by_stream) == {"orders/0": 23, "orders/1": EARLIEST_NUMBER}
    assert options.starts.of("orders/2") == EARLIEST_NUMBER
    ends = parse_source({**TOPIC, "endingOffsets": '{"orders": {"0": 23, "1": -1}}'}).ends
    assert ends is not None
    assert [ends.of(f"orders/{at}") for at in range(3)] == [23, LATEST_NUMBER, LATEST_NUMBER]


def test_words_for_offsets_are_read_whatever_their_case() -> None:
    assert parse_source({**READ, "startingOffsets": "Latest"}).starts == LATEST
    assert parse_source({**READ, "startingOffsets": "earliest"}).starts == EARLIEST
    assert parse_source({**READ, "startingOffsets": " "}).starts == EARLIEST


def test_url_and_path_may_say_the_same() -> None:
    assert parse_source({**READ, "path": URL}).url == URL


def test_every_option_of_a_write_is_read() -> None:
    options = parse_sink(
        {
            **WRITE,
            "token": "t",
            "txnAppId": "app",
            "txnVersion": "7",
            "createStream": "false",
            "contentType": "text/plain",
            "checkpointLocation": "/c",
            "queryName": "q",
            "retryTimeout": "500ms",
        }
    )
    assert (options.app_id, options.version, options.is_creating) == ("app", 7, False)
    assert (options.content_type, options.checkpoint, options.query_name) == (
        "text/plain",
        "/c",
        "q",
    )
    assert (options.retry_seconds, options.token, options.stream) == (0.5, "t", "totals")


def test_a_write_needs_only_an_address_since_rows_may_name_their_streams() -> None:
    options = parse_sink({"path": URL})
    assert (options.url, options.stream, options.app_id, options.version) == (URL, None, None, None)
    assert options.is_creating
    assert options.content_type == "application/json"


def test_a_topic_may_be_written_and_created() -> None:
    options = parse_sink(TOPIC)
    assert (options.topic, options.stream, options.partitions) == ("orders", None, None)
    created = parse_sink({**TOPIC, "partitions": "8", "partitioner": "Murmur2"})
    assert (created.partitions, created.partitioner) == (8, "murmur2")
    assert parse_sink({**TOPIC, "partitions": "1000"}).partitioner == "crc32"


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"stream": "a"}, "the address of the server is missing"),
        ({"url": URL, "path": "http://other", "stream": "a"}, "set only one of them"),
        ({"url": "localhost:4437", "stream": "a"}, "such as http://127.0.0.1:4437"),
        ({"url": URL}, "you set none of them"),
        ({**READ, "subscribe": "a"}, "you set stream and subscribe"),
        ({**READ, "topic": "a"}, "you set stream and topic"),
        ({"url": URL, "topic": "a//b"}, "'a//b' is not a valid topic name"),
        ({"url": URL, "topic": ""}, "'' is not a valid topic name"),
        ({"url": URL, "topic": "a" * 501}, "it is longer than 500 bytes"),
        ({"url": URL, "topic": "/".join("a" * 16)}, "is not a valid topic name"),
        ({**TOPIC, "startingOffsets": '{"orders": 5}'}, 'write {"orders": {"0": 23}}'),
        ({**TOPIC, "startingOffsets": '{"other": {"0": 5}}'}, "does not read 'other/0'"),
        ({**TOPIC, "startingOffsets": '{"orders": {"00": 5}}'}, "does not read 'orders/00'"),
        ({**TOPIC, "startingOffsets": '{"orders": {"1000": 5}}'}, "does not read 'orders/1000'"),
        ({**TOPIC, "startingOffsets": '{"orders": {"x": 5}}'}, "does not read 'orders/x'"),
        ({**TOPIC, "startingOffsets": '{"orders": {"0": {}}}'}, "offset of orders/0 is not valid"),
        (
            {**TOPIC, "startingOffsets": '{"orders": {"0": 1}, "orders/0": 2}'},
            "orders/0 has two offsets; remove one",
        ),
        ({**TOPIC, "endingOffsets": '{"orders": {"0": -2}}'}, "cannot be 'earliest' (-2)"),
        ({**TOPIC, "partitions": "8"}, "cannot be used in a read: remove the option"),
        ({**READ, "startingOffsets": '{"orders": {"0": 5}}'}, "does not read 'orders/0'; it reads"),
        ({"url": URL, "subscribe": " , "}, 'write comma-separated paths, such as "orders,refunds"'),
        ({"url": URL, "stream": "a//b"}, "'a//b' is not a valid stream path"),
        ({"url": URL, "subscribePattern": "("}, "is not a regular expression"),
        ({**READ, "startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({**READ, "zzzzzzzz": "1"}, "expected one of url, path, token, stream"),
        ({**READ, "txnAppId": "a"}, "cannot be used in a read: remove the option"),
        ({**READ, "startingOffsets": "begin"}, 'write "earliest", "latest", or JSON'),
        ({**READ, "startingOffsets": "{}"}, 'write "earliest", "latest", or JSON'),
        ({**READ, "startingOffsets": "[1]"}, 'write "earliest", "latest", or JSON'),
        (
            {**READ, "startingOffsets": '{"orders": -3}'},
            "the offset of orders is not valid",
        ),
        (
            {**READ, "startingOffsets": '{"orders": true}'},
            "the offset of orders is not valid",
        ),
        (
            {**READ, "startingOffsets": '{"orders": "x"}'},
            "the offset of orders is not valid",
        ),
        (
            {**READ, "startingOffsets": '{"order": 1}'},
            "this query does not read 'order'; it reads only",
        ),
        ({**READ, "endingOffsets": "earliest"}, "endingOffsets cannot be 'earliest' (-2)"),
        ({**READ, "endingOffsets": '{"orders": -2}'}, "endingOffsets cannot be 'earliest' (-2)"),
        ({**READ, "startingTimestamp": "now"}, "Timestamp must be an integer of at least 0"),
        (
            {**READ, "startingTimestamp": "1", "startingOffsets": "latest"},
            "cannot be used together: remove one",
        ),
        ({**READ, "maxOffsetsPerTrigger": "0"}, "must be an integer of at least 1, not '0'"),
        ({**READ, "maxOffsetsPerTrigger": "9" * 20}, "must be an integer of at least 0"),
        ({**READ, "minPartitions": "-1"}, "must be an integer of at least 0, not '-1'"),
        ({**READ, "failOnDataLoss": "no"}, "must be true or false, not 'no'"),
        ({**READ, "includeHeaders": ""}, "must be true or false, not ''"),
        ({**READ, "retryTimeout": "soon"}, "a duration such as 120s, 500ms or 2m"),
        ({**READ, "retryTimeout": "0s"}, "a duration such as 120s, 500ms or 2m"),
    ],
)
def test_a_read_that_makes_no_sense_is_refused_in_one_line(
    options: dict[str, str], cure: str
) -> None:
    with pytest.raises(SparkOptionError) as caught:
        parse_source(options)
    assert cure in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({**WRITE, "txnVersion": "3"}, 'add .option("txnAppId", ...)'),
        ({**WRITE, "txnVersion": "x", "txnAppId": "a"}, "Version must be an integer of at least 0"),
        ({**WRITE, "createStreams": "true"}, "did you mean createStream?"),
        ({**WRITE, "startingOffsets": "latest"}, "cannot be used in a write: remove the option"),
        ({**WRITE, "createStream": "1"}, "must be true or false"),
        ({"url": URL, "stream": ""}, "is not a valid stream path"),
        ({**WRITE, "topic": "a"}, "stream and topic cannot be used together: remove one"),
        ({**WRITE, "partitions": "8"}, 'add .option("topic", ...)'),
        ({**TOPIC, "partitioner": "crc32"}, 'add .option("partitions", ...)'),
        ({**TOPIC, "partitions": "0"}, "must be an integer of at least 1, not '0'"),
        ({**TOPIC, "partitions": "1001"}, "must be an integer of at most 1,000, not '1001'"),
        ({**TOPIC, "partitions": "2", "partitioner": "md5"}, "must be crc32 or murmur2, not 'md5'"),
        ({**TOPIC, "partitions": "2", "createStream": "false"}, "createStream is false"),
        ({**TOPIC, "subscribe": "a"}, "cannot be used in a write: remove the option"),
    ],
)
def test_a_write_that_makes_no_sense_is_refused_in_one_line(
    options: dict[str, str], cure: str
) -> None:
    with pytest.raises(SparkOptionError) as caught:
        parse_sink(options)
    assert cure in str(caught.value)


def test_a_token_is_not_shown_among_the_options() -> None:
    for options in (parse_source, parse_sink):
        parsed = pickle.loads(pickle.dumps(options({**READ, "token": "very-secret"})))
        assert parsed.token == "very-secret"
        assert "very-secret" not in repr(parsed)
    assert parse_source({**READ, "token": " "}).token is None


def test_the_token_is_that_of_the_environment_unless_an_option_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SEMEL_TOKEN", "of-the-driver")
    file = TokenFile("/run/token")
    for more, expected in (
        ({}, "of-the-driver"),
        ({"token": "own"}, "own"),
        ({"token": ""}, None),
        ({"tokenFile": "/run/token"}, file),
        ({"tokenFile": "/run/token", "token": ""}, file),
        ({"tokenFile": " "}, "of-the-driver"),
    ):
        for parsed in (parse_source({**READ, **more}), parse_sink({"url": URL, **more})):
            assert pickle.loads(pickle.dumps(parsed)).token == expected
            assert "of-the-driver" not in repr(parsed)


def test_an_executor_does_not_use_a_token_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = parse_source({**READ, "url": "http://127.0.0.1:2", "token": ""})
    monkeypatch.setenv("SEMEL_TOKEN", "of-the-executor")
    assert b"Authorization" not in client_for(parsed).transport.fixed


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"token": "very-secret", "tokenFile": "/run/token"}, "cannot be used together"),
        ({"tokenFile": "run/token"}, "must be an absolute path"),
        ({"token": "very-secret x"}, "the option token does not contain one token"),
        ({"token": "very-secret\u0142"}, "the option token does not contain one token"),
    ],
)
def test_a_wrong_token_is_refused_without_being_shown(more: dict[str, str], reason: str) -> None:
    with pytest.raises(SparkOptionError, match=reason) as refused:
        parse_source({**READ, **more})
    assert "very-secret" not in str(refused.value)


def test_a_wrong_token_in_the_environment_is_an_error_of_the_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SEMEL_TOKEN", "very secret")
    with pytest.raises(SparkOptionError, match="the variable SEMEL_TOKEN") as refused:
        parse_source(READ)
    assert "very secret" not in str(refused.value)
