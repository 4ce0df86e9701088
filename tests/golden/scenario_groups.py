"""The steps of the scenario for groups of readers, sinks, and the command line."""

from typing import Any, Final

from msgspec.structs import replace

from tests.golden.plain import batch, offset
from tests.golden.scenario_run import ScenarioRun, Steps

step: Final = Steps()


# ---- groups --------------------------------------------------------------------------------------


@step
def look_at_groups(run: ScenarioRun) -> Any:
    return [run.client.group(name).offsets() for name in ("readers", "a group/ü", "nobody")]


@step
def set_a_group(run: ScenarioRun) -> Any:
    group = run.client.group("a group/ü")
    incarnation = run.client.stream("in").head().incarnation
    return [
        group.set({"in": 1, "out": offset(2)}),
        group.set({"in": (1, 2)}),
        group.set({"in": (offset(2), 0, incarnation)}),
        group.set({"in": (0, 1, incarnation, 3)}),
        group.offsets(),
    ]


@step
def set_a_group_from_where_it_is_not(run: ScenarioRun) -> Any:
    return run.client.group("a group/ü").set({"in": (0, 2)})


@step
def set_a_group_in_another_incarnation(run: ScenarioRun) -> Any:
    return run.client.group("a group/ü").set({"in": (1, 2, "0123456789abcdef")})


@step
def set_a_group_past_the_end(run: ScenarioRun) -> Any:
    return run.client.group("a group/ü").set({"in": 100})


@step
def set_a_group_in_no_stream(run: ScenarioRun) -> Any:
    return run.client.group("a group/ü").set({"nowhere": 0})


@step
def commit_messages_of_a_tail(run: ScenarioRun) -> Any:
    with run.client.stream("a").tail(group="workers", producer_id="worker-1") as tail:
        run.wait(next(tail).commit())
        run.wait(next(tail).commit())
        message = next(tail)
        with run.client.transaction(producer_id="worker-1") as txn:
            txn.append("out", message.value)
            txn.commit_message(message)
            pending = run.command("groups", "show", "workers")
        again = next(tail)
        with run.client.transaction(producer_id="worker-1") as txn:
            txn.commit_offsets("workers", {"a": again.next_offset})
        last = next(tail)
        moves = {"workers": {"a": last.next_offset}}
        done = run.client.commit(producer_id="worker-1", epoch=0, seq=0, offsets=moves)
    return [message, pending["exit"], again, txn.result, done]


@step
def begin_to_read_while_an_own_transaction_moves_the_group(run: ScenarioRun) -> Any:
    with run.client.transaction(producer_id="worker-1") as txn:
        txn.commit_offsets("own", {"a": (0, 1)})
        with run.client.stream("a").tail(group="own") as tail:
            return [next(tail).offset, txn.state]


@step
def commit_a_message_after_somebody_else(run: ScenarioRun) -> Any:
    with run.client.stream("a").tail(group="two") as tail:
        message = next(tail)
        run.other.group("two").set({"a": 1})
        run.wait(message.commit())


@step
def move_a_group_that_a_prepared_transaction_holds(run: ScenarioRun) -> Any:
    with run.client.transaction("holder", producer_id="worker-1") as txn:
        txn.commit_offsets("held", {"a": (0, 1)})
        txn.prepare()
    run.client.group("held").set({"a": 1})


@step
def decide_what_was_held(run: ScenarioRun) -> Any:
    return [run.client.commit_prepared("holder:1"), run.client.group("held").offsets()]


@step
def pin_steps(run: ScenarioRun) -> Any:
    group = run.client.group("pinned")
    before = group.snapshot()
    part = {"incarnation": run.client.stream("in").head().incarnation, "from": 0, "to": offset(1)}
    pinned = {"number": 1, "ranges": {"in": part}, "hash": "h1"}
    run.plain("POST", "/v1/groups/pinned/snapshot", pinned, content_type="application/json")
    first = group.snapshot()
    again = group.pin(replace(first, hash="not this one"))
    return [before, first, again, group.pin(replace(first, number=2, hash="h2"))]


@step
def pin_a_step_out_of_turn(run: ScenarioRun) -> Any:
    group = run.client.group("pinned")
    return group.pin(replace(group.snapshot(), number=9))


# ---- sinks ---------------------------------------------------------------------------------------


def staged(run: ScenarioRun, version: int, partition: int = 0) -> str:
    """Run one task of the sink `totals`, and return its token."""
    with run.client.sink("totals").task(version, partition) as task:
        task.append_many("out", [{"version": version, "partition": partition}], keys=["k"])
        task.append_batch("out", batch(b"application/json", [b"1", b"2"]), 2)
        return str(task.prepare())


@step
def commit_versions_of_a_sink(run: ScenarioRun) -> Any:
    sink = run.client.sink("totals")
    first = [staged(run, 0, partition) for partition in (0, 1)]
    found = [sink.commit(0, first, input="i0") for _ in range(2)]
    second = staged(run, 1)
    more: dict[str, Any] = {
        "appends": {"words": ["six "]},
        "offsets": {"totals": {"in": 1}},
        "query_id": "totals",
    }
    found.append(sink.commit(1, [second], input="i1", previous="i0", **more))
    return found


@step
def commit_a_version_without_digests(run: ScenarioRun) -> Any:
    sink = run.client.sink("plain sink")
    return [sink.commit(0) for _ in range(2)]


@step
def look_at_sinks(run: ScenarioRun) -> Any:
    return [run.client.sinks(), run.client.sink("totals").info()]


@step
def look_at_a_sink_that_is_not_known(run: ScenarioRun) -> Any:
    return run.client.sink("nobody").info()


@step
def commit_a_version_of_another_history(run: ScenarioRun) -> Any:
    return run.client.sink("totals").commit(2, input="i2", previous="not i1")


@step
def commit_a_version_of_another_query(run: ScenarioRun) -> Any:
    return run.client.sink("totals").commit(2, query_id="other", input="i2")


@step
def commit_a_task_that_is_not_prepared(run: ScenarioRun) -> Any:
    task = run.client.sink("totals").task(2)
    task.begin()
    task.append_many("out", ["not prepared"])
    run.kept["token"] = task.token
    return run.client.sink("totals").commit(2, [task.token], input="i2", previous="i1")


@step
def abort_tasks(run: ScenarioRun) -> None:
    run.client.sink("totals").abort(run.kept["token"])
    with run.client.sink("totals").task(2) as task:
        task.append_many("out", ["aborted"])
        task.abort()


@step
def commit_a_task_that_is_aborted(run: ScenarioRun) -> Any:
    token = run.kept["token"]
    return run.client.sink("totals").commit(2, [token], input="i2", previous="i1")


@step
def rebind_a_sink(run: ScenarioRun) -> Any:
    return run.client.sink("totals").rebind("other", 5)


@step
def commit_a_version_that_is_forgotten(run: ScenarioRun) -> Any:
    return run.client.sink("totals").commit(4, query_id="other", input="i4")


@step
def forget_a_sink(run: ScenarioRun) -> Any:
    run.client.sink("totals").forget()
    return run.client.sinks()


@step
def forget_a_sink_that_is_not_known(run: ScenarioRun) -> Any:
    run.client.sink("totals").forget()


# ---- consume, transform, produce -----------------------------------------------------------------


@step
def process_one_input(run: ScenarioRun) -> Any:
    def doubled(given: Any) -> dict[str, list[Any]]:
        return {"out": [[message.value, len(given)] for message in given]}

    process = run.client.process
    return [process("doubling", ["in"], doubled, live=False, max_messages=2) for _ in range(2)]


@step
def process_two_inputs(run: ScenarioRun) -> Any:
    paths: list[str] = []

    def noted(given: Any) -> None:
        paths.append(given.stream)

    return [run.client.process("noting", ["in", "words"], noted, live=False), paths]


# ---- command line --------------------------------------------------------------------------------


@step
def look_after_transactions_by_command(run: ScenarioRun) -> Any:
    found = []
    for name, action in (("hand-1", "commit"), ("hand-2", "abort"), ("hand-3", "fence")):
        txn = run.client.transaction(name, producer_id="hand", producer_epoch=0)
        txn.begin()
        txn.append("a", name)
        found += [
            run.command("txn", "ls", "--stream", "a", "--state", "open"),
            run.command("txn", "show", name),
            run.command("txn", action, name),
            run.command("txn", "show", name, "--epoch", "1"),
        ]
    return found


@step
def end_an_unknown_transaction_by_command(run: ScenarioRun) -> Any:
    return [
        run.command("txn", "commit", "never"),
        run.command("txn", "abort", "never", "--epoch", "2"),
    ]


@step
def look_after_groups_by_command(run: ScenarioRun) -> Any:
    return [
        run.command("groups", "set", "workers", "a", "1", "--expect", "0"),
        run.command("groups", "set", "workers", "a", "1"),
        run.command("groups", "show", "workers"),
        run.command("groups", "show", "pinned"),
    ]


@step
def look_after_sinks_by_command(run: ScenarioRun) -> Any:
    return [
        run.command("sinks", "ls"),
        run.command("sinks", "show", "plain sink"),
        run.command("sinks", "rebind", "plain sink", "--query-id", "q", "--last-version", "-1"),
        run.command("sinks", "forget", "plain sink"),
    ]
