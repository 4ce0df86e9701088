"""The steps of the scenario for transactions and for commits in one request."""

from typing import Any, Final

from tests.golden.plain import offset
from tests.golden.scenario_run import ScenarioRun, Steps
from tests.golden.scenario_streams import NOON

step: Final = Steps()


# ---- transactions --------------------------------------------------------------------------------


@step
def create_the_streams_of_transactions(run: ScenarioRun) -> None:
    for path in ("a", "b", "in", "out"):
        run.client.stream(path).create("application/json")
    run.client.stream("words").create("text/plain")


@step
def commit_a_transaction(run: ScenarioRun) -> Any:
    with run.client.transaction("transfer", producer_id="bank") as txn:
        receipts = [
            txn.append("a", {"amount": -5}),
            txn.append_many("b", [{"amount": 2}, {"amount": 3}], keys=["k", None]),
            txn.append("a", "late", headers=[("h", b"v")], timestamp=NOON),
            txn.append_many("words", ["one ", "two "]),
        ]
        blocked = [message.value for message in run.client.stream("a").read()]
        uncommitted = list(run.client.stream("a").read(isolation="read_uncommitted"))
        status = run.client.transaction_status(txn.token)
    return [receipts, blocked, uncommitted, status, txn.state, txn.token, txn.result]


@step
def commit_a_transaction_of_a_fresh_id(run: ScenarioRun) -> Any:
    with run.client.transaction() as txn:
        txn.append("a", 1)
        txn.commit_offsets("billing", {"b": 1, "a": (0, 2)})
    return [txn.result, run.client.transaction_status(txn.id)]


@step
def abort_a_transaction(run: ScenarioRun) -> Any:
    txn = run.client.transaction(producer_id="bank", timeout=30)
    txn.begin()
    txn.append("a", "never")
    txn.abort()
    return [txn.state, run.client.transaction_status(txn.token)]


@step
def abort_a_transaction_by_an_exception(run: ScenarioRun) -> Any:
    with run.client.transaction(producer_id="bank") as txn:
        txn.append("a", "never")
        raise ValueError


@step
def commit_a_staged_transaction(run: ScenarioRun) -> Any:
    with run.client.transaction("staged", producer_id="bank", kind="staged") as txn:
        receipts = [txn.append("a", "chunk"), txn.append_many("words", ["three ", "four "])]
        status = run.client.transaction_status("staged")
    return [receipts, status, txn.result]


@step
def write_a_stream_that_was_not_added(run: ScenarioRun) -> Any:
    with run.client.transaction(producer_id="bank", streams=["a"]) as txn:
        txn.append("a", "added")
        txn.append("b", "not added")


@step
def add_streams_to_a_transaction(run: ScenarioRun) -> Any:
    with run.client.transaction(producer_id="bank", streams=["a"]) as txn:
        txn.add_streams("b", "words")
        txn.append("b", "added")
    return txn.result


@step
def add_a_stream_that_is_not_there(run: ScenarioRun) -> Any:
    with run.client.transaction(producer_id="bank", streams=["a"]) as txn:
        txn.add_streams("nowhere")


@step
def begin_two_transactions_of_one_producer(run: ScenarioRun) -> Any:
    with run.client.transaction("first", producer_id="bank") as txn:
        txn.append("a", 2)
        run.client.transaction("second", producer_id="bank").begin()


@step
def begin_a_transaction_that_is_open(run: ScenarioRun) -> Any:
    with run.client.transaction("open", producer_id="own", producer_epoch=3) as txn:
        txn.append("a", 3)
        run.other.transaction("open", producer_id="own", producer_epoch=3).begin()


@step
def prepare_and_commit_by_token(run: ScenarioRun) -> Any:
    with run.client.transaction("prepared", producer_id="bank") as txn:
        txn.append("a", 4)
        token = txn.prepare()
    found = [token, txn.state, run.other.transaction_status(token)]
    return [*found, *[run.other.commit_prepared(token) for _ in range(2)]]


@step
def prepare_and_abort_by_token(run: ScenarioRun) -> Any:
    with run.client.transaction("dropped", producer_id="bank") as txn:
        txn.append("a", 5)
        token = txn.prepare()
    run.client.abort_prepared(token)
    return [txn.state, run.client.transaction_status(token)]


@step
def abort_what_is_committed(run: ScenarioRun) -> Any:
    run.client.abort_prepared("prepared:1")


@step
def commit_what_is_aborted(run: ScenarioRun) -> Any:
    return run.client.commit_prepared("dropped:1")


@step
def ask_for_an_unknown_transaction(run: ScenarioRun) -> Any:
    return run.client.transaction_status("never:7")


@step
def append_to_a_decided_transaction(run: ScenarioRun) -> Any:
    with run.client.transaction("decided", producer_id="bank") as txn:
        txn.append("a", 6)
        run.command("txn", "abort", "decided")
        txn.append("a", 7)


@step
def commit_too_late(run: ScenarioRun) -> Any:
    txn = run.client.transaction("slow", producer_id="bank", timeout=0.02)
    txn.begin()
    run.pause(0.05)
    return txn.commit()


@step
def go_on_while_a_newer_instance_does(run: ScenarioRun) -> Any:
    with run.client.transaction("fenced", producer_id="bank") as txn:
        txn.append("a", 8)
        run.other.register_producer("bank")
        txn.append("a", 9)


@step
def begin_after_a_newer_instance(run: ScenarioRun) -> Any:
    run.client.transaction(producer_id="bank").begin()


@step
def close_a_stream_with_an_open_transaction(run: ScenarioRun) -> Any:
    with run.client.transaction(producer_id="closer") as txn:
        txn.append("b", "open")
        run.client.stream("b").close()


@step
def trim_and_fork_what_is_not_decided(run: ScenarioRun) -> Any:
    with run.client.transaction(producer_id="closer") as txn:
        txn.append("b", "open")
        end = run.client.stream("b").head().next_offset
        run.client.stream("b").fork("forks/early", offset=end)


# ---- one request ---------------------------------------------------------------------------------


@step
def commit_in_one_request(run: ScenarioRun) -> Any:
    run.client.stream("bytes").create()
    wanted: dict[str, Any] = {
        "appends": {"in": [{"id": 1}, b"[2]"], "words": ["five "], "bytes": [b"\xff\x00", b"x"]},
        "offsets": {"readers": {"in": (0, 1)}},
        "if_": {"in": 0},
    }
    return [run.client.commit(producer_id="shop", seq=0, **wanted) for _ in range(2)]


@step
def commit_something_else_under_a_number(run: ScenarioRun) -> Any:
    return run.client.commit(producer_id="shop", seq=0, appends={"in": ["other"]})


@step
def commit_a_number_too_far(run: ScenarioRun) -> Any:
    return run.client.commit(producer_id="shop", seq=5, appends={"in": ["far"]})


@step
def commit_where_a_stream_does_not_end(run: ScenarioRun) -> Any:
    return run.client.commit(producer_id="shop", seq=1, appends={"in": [1]}, if_={"in": 0})


@step
def commit_from_where_a_group_is_not(run: ScenarioRun) -> Any:
    moves = {"readers": {"in": (0, 2)}}
    return run.client.commit(producer_id="shop", seq=1, offsets=moves)


@step
def commit_under_an_old_epoch(run: ScenarioRun) -> Any:
    register = run.client.register_producer
    found = [register("epochs"), register("epochs")]
    return [found, run.client.commit(producer_id="epochs", seq=0, appends={"in": [1]})]


@step
def commit_staged_transactions(run: ScenarioRun) -> Any:
    tokens = []
    for name in ("part-1", "part-2"):
        txn = run.client.transaction(name, producer_id="shop", producer_epoch=0, kind="staged")
        with txn:
            txn.append("out", name)
            tokens.append(txn.prepare())
    return run.client.commit(
        producer_id="shop",
        seq=1,
        appends={"out": ["before"]},
        offsets={"readers": {"in": (offset(1), 2, None, 1)}},
        transactions=tokens,
    )
