"""The producer of a topic: a batch that was grouped for another number of partitions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.client.errors import Indeterminate, PartitionsChanged, ProtocolError
from semel.client.extras import Extra, extra_of
from semel.client.grouping import Grouper
from semel.client.producer.batches import ProducerBatch
from semel.client.producer.core import ProducerCore
from semel.client.producer.encoding import BodyEncoder, GroupedBody, TopicEncoder
from semel.client.producer.settings import ProducerSettings
from semel.client.response_parser import Response
from semel.client.stream_calls import NO_KNOWLEDGE, DedupKnowledge, info_of
from semel.model.offsets import print_offset
from semel.model.partitioners import HASHES
from semel.wire.headers import TOPIC_BATCH
from semel.wire.schema.topics import TopicPart
from tests.unit.client.hand import document
from tests.unit.client.producer_model import Answer, Known, ModelServer, Network, refusal
from tests.unit.client.test_producer_properties import Script
from tests.unit.client.test_topic_calls import JSON, changed, parts_of, state, stored

PATHS = ("append", "send", "serve", "deliver", "lose", "busy", "broken_after", "haunt", "wait")
steps_of = st.lists(
    st.tuples(st.sampled_from([*PATHS, "grow"]), st.integers(0, 7)), min_size=1, max_size=80
)


class TopicServer(ModelServer):
    """A server that looks for a repeat, then at the sequence, then at the number of partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.partitions = 3

    def _decide(
        self, known: Known, span: tuple[int, int], body: bytes, *, is_sparse: bool
    ) -> Answer:
        count = body.partition(b"|")[0]
        is_repeat = span in known.bodies or span[1] <= known.last
        is_next = span[0] == known.last + 1
        if not is_repeat and is_next and int(count) != self.partitions:
            return refusal(409, "partitions_changed", partitions=self.partitions)
        return super()._decide(known, span, body, is_sparse=is_sparse)

    def _store(self, body: bytes) -> None:
        super()._store(body.partition(b"|")[2])


class Grouping:
    """Encodes bodies that begin with the number of partitions."""

    def __init__(self) -> None:
        self.partitions = 3

    def encode(self, messages: Sequence[bytes], extras: Mapping[int, Extra], seq: int) -> bytes:
        del extras, seq
        return b"%d|[%b]" % (self.partitions, b",".join(messages))

    def regroup(self, error: PartitionsChanged, body: bytes) -> bool:
        assert error.partitions is not None
        self.partitions = error.partitions
        return int(body.partition(b"|")[0]) != error.partitions


class TopicNetwork(Network):
    """A batch can be sent with another body, but only after a refusal that says that it must."""

    def send(self) -> bool:
        self.seen.clear()
        return super().send()


class TopicScript(Script):
    def grow(self, number: int) -> None:
        server = self.network.server
        assert isinstance(server, TopicServer)
        server.partitions += number


def make(**settings: Any) -> TopicNetwork:
    grouping = Grouping()
    options = {"id": "p", "session": "s-1", "delivery_timeout": 1e9, **settings}
    known = options.pop("known", NO_KNOWLEDGE)
    core = ProducerCore(
        ProducerSettings(**options),
        grouping.encode,
        is_semel=known is not NO_KNOWLEDGE,
        known=known,
        regroup=grouping.regroup,
    )
    return TopicNetwork(core, TopicServer())


@given(steps_of)
def test_every_message_is_stored_once_and_in_order_while_the_topic_grows(
    steps: list[tuple[str, int]],
) -> None:
    network = make()
    script = TopicScript(network)
    script.play(steps)
    network.drain()
    assert network.core.failure is None
    assert network.server.log == script.messages
    assert sum(ack.count for ack in network.acked) == len(script.messages)


def test_a_body_that_may_be_stored_is_not_changed_before_the_server_has_refused_it() -> None:
    network = make()
    network.core.append(b"1", 0.0)
    network.send()
    network.serve()  # it is stored, but the response is lost
    network.lose()
    assert isinstance(network.server, TopicServer)
    network.server.partitions = 9
    network.drain()
    assert network.server.log == [b"1"]
    assert [ack.duplicate for ack in network.acked] == [True]


def test_a_refusal_that_repeats_itself_ends_the_producer() -> None:
    network = make()
    network.core.append(b"1", 0.0)
    network.send()
    network.serve(refusal(409, "partitions_changed", partitions=3), is_taken=False)
    network.deliver()
    assert isinstance(network.core.failure, PartitionsChanged)
    assert network.failed[0].applied == "no"


# ---- bodies and responses ------------------------------------------------------------------------


def batch_of(encoder: TopicEncoder, *keys: bytes | None) -> ProducerBatch:
    messages = [b"%d" % index for index in range(len(keys))]
    extras = {
        index: extra
        for index, key in enumerate(keys)
        if (extra := extra_of(key, None, None)) is not None
    }
    batch = ProducerBatch(messages, [], 0, 0.0, None, extras)
    batch.body = encoder.body(messages, extras)
    return batch


def encoder_of(partitions: int = 4) -> TopicEncoder:
    return TopicEncoder("application/json", Grouper("crc32", partitions), on_refusal=lambda: None)


def test_a_body_has_a_part_for_each_partition() -> None:
    encoder = encoder_of()
    batch = batch_of(encoder, b"a", b"b", None, b"a")
    fields = dict(encoder.fields(batch))
    assert fields == {"Content-Type": TOPIC_BATCH, "Topic-Partitions": "4;partitioner=crc32"}
    parts = parts_of(batch.body)
    assert sum(count for count, _ in parts.values()) == 4
    for place, (_, keys) in parts.items():
        assert all(HASHES["crc32"](key) % 4 == place for key in keys if key is not None)


def places_of(encoder: TopicEncoder, seqs: Iterable[int]) -> list[int]:
    """Return the partition of a batch without keys for each of these first sequences."""
    bodies = [encoder.body([b"1", b"2"], {}, seq) for seq in seqs]
    return [place for body in bodies for place in parts_of(body)]


def test_the_same_batch_without_keys_goes_to_the_same_partition_again() -> None:
    def encoder(name: str = "p", *, is_sparse: bool = False) -> TopicEncoder:
        grouper = Grouper("crc32", 4)
        return TopicEncoder(
            JSON, grouper, on_refusal=lambda: None, producer_id=name, is_sparse=is_sparse
        )

    key = extra_of("k", None, None)
    assert key is not None
    for is_sparse in (False, True):
        bodies = {encoder(is_sparse=is_sparse).body([b"1", b"2"], {0: key}, 7) for _ in range(9)}
        assert len(bodies) == 1
        encoders = encoder(is_sparse=is_sparse), encoder(is_sparse=is_sparse)
        assert places_of(encoders[0], range(30)) == places_of(encoders[1], range(30))
    first, *others = places_of(encoder(), range(8))
    assert others == [(first + number) % 4 for number in range(1, 8)]
    assert {*places_of(encoder(is_sparse=True), range(0, 4000, 40))} == {0, 1, 2, 3}
    names = [f"producer {number}" for number in range(60)]
    assert {place for name in names for place in places_of(encoder(name), [0])} == {0, 1, 2, 3}


def test_headers_and_times_are_sent_as_well() -> None:
    encoder = encoder_of(1)
    extra = extra_of("k", {"a": "1"}, None)
    assert extra is not None
    body = encoder.body([b"1"], {0: extra})
    plain = BodyEncoder("application/json", is_semel=True).body([b"1"], {0: extra})
    assert body.endswith(plain)


def test_a_response_of_a_topic_is_translated() -> None:
    encoder = encoder_of()
    batch = batch_of(encoder, b"a")
    adapted = encoder.adapt(batch, stored((2, 5, 6)))
    assert adapted.status == 200
    assert [part.offset for part in batch.parts] == [print_offset(5)]
    assert encoder.adapt(batch, stored((2, 5, 6), duplicate=True)).status == 204
    assert encoder.adapt(batch, changed(9)) == changed(9)
    with pytest.raises(ProtocolError):
        encoder.adapt(batch, Response(200, {}, b"{"))


def test_the_check_of_a_topic_reads_whether_it_recognises_duplicates() -> None:
    adapted = encoder_of().adapt(None, state(3, dedup="off"))
    assert adapted.headers["stream-dedup"] == "off"
    assert adapted.headers["stream-incarnation"] == "i"
    with pytest.raises(ProtocolError):
        encoder_of().adapt(None, document([]))


def test_the_check_of_a_topic_reads_since_when_it_recognises_duplicates() -> None:
    known = DedupKnowledge("i", None, print_offset(3), is_topic=True)

    def doubt(**members: Any) -> str | None:
        return known.doubt(info_of(encoder_of().adapt(None, state(3, **members)).headers))

    assert doubt(appended=4) is None
    assert doubt(appended=4, dedup_from=3) is None
    assert doubt(appended=4, dedup_from=4) is not None
    assert doubt(appended=4, dedup_pending="off") is not None
    off = {"dedup": "off", "dedup_from": None}
    assert doubt(appended=3, **off) is not None
    assert doubt(appended=3, dedup_pending="on", **off) is None
    assert doubt(appended=4, dedup_pending="on", **off) is not None


def test_the_offset_in_a_partition_does_not_hide_a_switch() -> None:
    network = make(known=DedupKnowledge("i", None, print_offset(0), is_topic=True))
    network.core.append(b"1", 0.0)
    batch = network.core.next_to_send(1.0)
    assert batch is not None
    network.core.headers(batch)
    batch.parts = (TopicPart(0, "t/0", print_offset(90), print_offset(91)),)
    stored_at = {"stream-next-offset": print_offset(91), "producer-epoch": "0"}
    network.core.on_response(batch, 200, stored_at, b"", 1.0)
    network.core.append(b"2", 2.0)
    assert network.core.next_to_send(3.0) is not None
    network.core.connection_lost(3.0, Indeterminate("lost"))
    later = network.core.wake_at()
    assert later is not None
    assert network.core.starts_check(later)
    switched = {"stream-dedup-from": print_offset(2), "stream-incarnation": "i"}
    network.core.on_check(200, switched, b"", later)
    assert isinstance(network.core.failure, Indeterminate)


def test_a_body_is_grouped_again_only_for_another_number() -> None:
    encoder = encoder_of(4)
    old = batch_of(encoder, b"a").body

    def refused(partitions: int | None, partitioner: str = "crc32") -> PartitionsChanged:
        facts = {} if partitions is None else {"partitions": partitions}
        return PartitionsChanged("changed", facts=facts | {"partitioner": partitioner})

    assert not encoder.regroup(refused(4), old)
    assert not encoder.regroup(refused(None), old)
    assert encoder.regroup(refused(6), old)
    assert encoder.regroup(refused(6), old)  # a later batch that was in flight
    new = batch_of(encoder, b"a").body
    assert isinstance(new, GroupedBody)
    assert new.grouped.partitions == 6
    assert not encoder.regroup(refused(6, "md5"), new)
    assert not encoder.regroup(refused(6), new)
    assert encoder.regroup(refused(6, "murmur2"), new)
    last = batch_of(encoder, b"a")
    assert dict(encoder.fields(last))["Topic-Partitions"] == "6;partitioner=murmur2"
    assert list(parts_of(last.body)) == [HASHES["murmur2"](b"a") % 6]
