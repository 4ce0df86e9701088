"""The steps of the scenario for producers."""

from typing import Any, Final

from tests.golden.scenario_run import ScenarioRun, Steps
from tests.golden.scenario_streams import NOON

step: Final = Steps()


@step
def register_producers(run: ScenarioRun) -> Any:
    register = run.client.register_producer
    return [register(), register("till"), register("till")]


@step
def register_an_id_that_was_never_given_out(run: ScenarioRun) -> Any:
    return run.client.register_producer("123456")


def sent(producer: Any, values: list[Any], **more: Any) -> list[Any]:
    """Send values in one batch, and return the state of the producer after it."""
    for value in values:
        producer.append(value, **more)
    producer.flush()
    return [producer.epoch, producer.last_seq, producer.pending_count]


@step
def produce_under_a_claim(run: ScenarioRun) -> Any:
    run.client.stream("made").create("application/json")
    acks: list[Any] = []
    options = {"auto_claim": True, "linger_ms": 60_000, "on_batch_ack": acks.append}
    with run.client.stream("made").producer("worker", **options) as producer:
        found = [
            producer.cursor,
            sent(producer, [{"id": 1}, {"id": 2}]),
            sent(producer, ["noted"], cursor="line 3"),
            sent(producer, ["keyed"], key="k", headers={"h": "v"}, timestamp=NOON),
        ]
    return [found, acks]


@step
def produce_again_after_a_restart(run: ScenarioRun) -> Any:
    with run.client.stream("made").producer("worker", auto_claim=True) as producer:
        found = [producer.epoch, producer.cursor, producer.last_seq]
        return [found, sent(producer, ["after"])]


@step
def produce_at_once(run: ScenarioRun) -> Any:
    options = {"content_type": "application/json", "linger_ms": 60_000}
    with run.client.stream("made").producer("worker", **options) as producer:
        return sent(producer, ["at once"])


@step
def produce_the_last_message(run: ScenarioRun) -> Any:
    run.client.stream("finished").create("application/json")
    with run.client.stream("finished").producer("Zähler", linger_ms=60_000) as producer:
        producer.append("last but one")
        producer.close_stream("last")
    return run.client.stream("finished").head().closed


@step
def produce_in_a_stream_that_is_closed(run: ScenarioRun) -> Any:
    with run.client.stream("finished").producer("late") as producer:
        producer.close_stream()
        producer.append("late")


@step
def produce_while_a_newer_instance_does(run: ScenarioRun) -> Any:
    older = run.client.stream("made").producer("pair", auto_claim=True).__enter__()
    with run.other.stream("made").producer("pair") as newer:
        sent(newer, ["newer"])
    older.append("older")
    older.close()


@step
def produce_under_an_epoch(run: ScenarioRun) -> Any:
    made = run.client.stream("made")
    with made.producer("counted", epoch=4) as producer:
        first = sent(producer, ["four"])
    with made.producer("counted", auto_claim=True) as producer:
        return [first, sent(producer, ["five"])]


@step
def produce_under_an_old_epoch(run: ScenarioRun) -> Any:
    with run.client.stream("made").producer("counted", epoch=1) as producer:
        return sent(producer, ["one"])


@step
def produce_sparse_numbers(run: ScenarioRun) -> Any:
    made = run.client.stream("made")
    with made.producer("lines", mode="sparse", linger_ms=60_000) as producer:
        for seq in (3, 5, 9):
            producer.append(f"line {seq}", seq=seq, cursor=f"at {seq}")
        producer.flush()
    with made.producer("lines", mode="sparse", linger_ms=60_000) as producer:
        for seq in (5, 9, 12):
            producer.append(f"line {seq}", seq=seq)
        producer.flush()
        return [producer.last_seq, producer.cursor]


@step
def produce_in_the_other_mode(run: ScenarioRun) -> Any:
    with run.client.stream("made").producer("lines") as producer:
        return sent(producer, ["dense"])


@step
def produce_text(run: ScenarioRun) -> Any:
    run.client.stream("lined").create("text/plain")
    with run.client.stream("lined").producer("writer", linger_ms=60_000) as producer:
        return sent(producer, ["one\n", "two\n"])


@step
def produce_without_recognition(run: ScenarioRun) -> Any:
    with run.client.stream("unguarded").producer("writer") as producer:
        return sent(producer, ["x"])


@step
def look_at_producers(run: ScenarioRun) -> Any:
    made = run.client.stream("made")
    return [made.producers(), made.producers("lines"), made.producers("nobody")]


@step
def explain_appends(run: ScenarioRun) -> Any:
    made = run.client.stream("made")
    return [
        made.explain("counted", 1, epoch=5),
        made.explain("counted", 0, epoch=5),
        made.explain("counted", 7, epoch=5),
        made.explain("counted", 0, epoch=1),
        made.explain("lines", "4-6", mode="sparse"),
        made.explain("nobody", 0, session="s"),
    ]


@step
def explain_an_append_to_no_stream(run: ScenarioRun) -> Any:
    return run.client.stream("nowhere").explain("p", 0)


@step
def forget_a_producer(run: ScenarioRun) -> Any:
    made = run.client.stream("made")
    made.forget_producer("counted")
    return made.producers("counted")


@step
def forget_a_producer_that_is_not_known(run: ScenarioRun) -> Any:
    run.client.stream("made").forget_producer("nobody")


@step
def use_the_commands_for_streams(run: ScenarioRun) -> Any:
    return [
        run.command("append", "orders", '{"id": 9}', "--producer", "cli", "--epoch", "0", *seq)
        for seq in (["--seq", "0"], ["--seq", "0"], ["--seq", "2"])
    ] + [
        run.command("head", "unguarded"),
        run.command("ls", "--prefix", "forks/", "--limit", "2"),
        run.command("read", "orders", "--offset", "16"),
        run.command("producers", "show", "orders", "cli"),
    ]
