"""Queries of the state get their result when that state is durable."""

from typing import Any

from semel.model.commands import Append, Batch, ForgetProducer, ProducerTag
from semel.server.producers import producers_page
from semel.wire.producers import ProducerQuery
from tests.unit.broker.bed import Bed


def ids(results: list[Any]) -> list[str]:
    return [producer.producer_id for producer in results[0].producers]


def test_what_is_remembered_of_producers_is_told_when_it_is_durable() -> None:
    """EO-4: a crash must not undo a state that a caller has seen."""
    bed = Bed()
    bed.execute(bed.create())
    tag = ProducerTag("p", 0, 0, 0)
    written = bed.submit(Append("s", bed.now_ms, "text/plain", Batch(b"x"), producer=tag))
    results: list[Any] = []
    bed.broker.ask(
        lambda state: producers_page(state, ProducerQuery("s", None, "", 10), 0), results.append
    )
    assert (written, results) == ([], [])
    bed.flush()
    assert (len(written), ids(results)) == (1, ["p"])
    bed.submit(ForgetProducer("s", bed.now_ms, "p"))
    results.clear()
    bed.broker.ask(
        lambda state: producers_page(state, ProducerQuery("s", "p", "", 10), 0), results.append
    )
    assert results == []
    bed.flush()
    assert ids(results) == []


def test_a_stream_whose_time_is_over_is_not_there_any_more() -> None:
    bed = Bed()
    bed.execute(bed.create("mortal", ttl_ms=50))
    bed.execute(bed.create())
    assert bed.broker.has_stream("mortal", bed.now_ms)
    bed.now_ms += 50
    assert not bed.broker.has_stream("mortal", bed.now_ms)
    assert bed.broker.has_stream("s", bed.now_ms)
