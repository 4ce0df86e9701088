"""The steps of the scenario for streams: create, append, read, tail, fork, trim, delete."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tests.golden.plain import offset
from tests.golden.scenario_run import ScenarioRun, Steps

step: Final = Steps()
NOON: Final = datetime(2001, 2, 3, 12, 0, 0, 123_000, tzinfo=UTC)
YEAR_2100: Final = datetime(2100, 1, 2, 3, 4, 5, tzinfo=UTC)


# ---- creating ------------------------------------------------------------------------------------


@step
def ask_for_health(run: ScenarioRun) -> Any:
    return run.client.health()


@step
def create_streams(run: ScenarioRun) -> None:
    def create(path: str, *given: Any, **named: Any) -> None:
        run.client.stream(path).create(*given, **named)

    create("orders", "application/json")
    create("notes", "text/plain", body="first ")
    create("blobs")
    create("shop/orders/2024", "application/json", body=[1, 2])
    create("short lived/ü", "text/plain; charset=utf-8", ttl=3600)
    create("dated", "text/plain", expires_at=YEAR_2100)
    create("dated too", "text/plain", ttl=timedelta(hours=2))
    create("done", "application/json", closed=True, body={"last": True})


@step
def create_a_stream_that_is_there(run: ScenarioRun) -> None:
    run.client.stream("orders").create("application/json")


@step
def create_a_stream_that_may_be_there(run: ScenarioRun) -> None:
    run.client.stream("orders").create("application/json", exist_ok=True)


@step
def create_a_stream_with_another_configuration(run: ScenarioRun) -> None:
    run.client.stream("orders").create("text/plain", exist_ok=True)


@step
def create_a_stream_without_recognition_by_command(run: ScenarioRun) -> Any:
    return run.command("create", "unguarded", "--content-type", "text/plain", "--dedup", "off")


@step
def set_and_delete_policies(run: ScenarioRun) -> Any:
    run.client.set_policy("measured", dedup=False)
    stream = run.client.stream("measured/one").create("text/plain")
    heads = [stream.head(), stream.set_dedup(True), stream.set_dedup(None)]
    shown = run.command("policies", "ls"), run.command("policies", "show", "measured", "--json")
    found = run.client.policy("measured"), run.client.policies()
    deleted = run.command("policies", "delete", "measured")
    stream.delete()
    plain = [(policy.prefix, policy.dedup) for policy in (found[0], *found[1])]
    return [heads, plain, shown[0], deleted]


@step
def look_at_streams(run: ScenarioRun) -> Any:
    paths = ("orders", "short lived/ü", "dated", "dated too", "done", "unguarded")
    return [run.client.stream(path).head() for path in paths]


@step
def look_at_a_stream_that_is_not_there(run: ScenarioRun) -> Any:
    return run.client.stream("nowhere").head()


@step
def ask_whether_streams_exist(run: ScenarioRun) -> Any:
    return [run.client.stream(path).exists() for path in ("orders", "nowhere")]


# ---- appending -----------------------------------------------------------------------------------


@step
def append_values(run: ScenarioRun) -> Any:
    orders = run.client.stream("orders")
    return [
        orders.append({"id": 1, "name": "ä", "price": 1.5, "paid": None}),
        orders.append([1, [2]]),
        orders.append(b'{"spaced" :  true}'),
        orders.append_many(["a", 2, {"b": []}]),
    ]


@step
def append_json_that_few_parsers_take(run: ScenarioRun) -> Any:
    odd = run.client.stream("odd").create("application/json")
    odd.append_many(["\ud800", float("nan"), 2**63, b"1e400", b"123456789012345678901234567890"])
    return list(odd.read())


@step
def append_with_what_a_message_carries(run: ScenarioRun) -> Any:
    orders = run.client.stream("orders")
    return [
        orders.append("keyed", key=b"k", headers=[("trace", b"\x01")], timestamp=NOON),
        orders.append_many(
            ["x", "y"],
            keys=["one", None],
            headers=[None, {"h": "v"}],
            timestamps=[None, NOON],
        ),
    ]


@step
def append_text_and_bytes(run: ScenarioRun) -> Any:
    notes, blobs = run.client.stream("notes"), run.client.stream("blobs")
    return [
        notes.append("second "),
        notes.append_many(["third ", "fourth ü"]),
        blobs.append(b"\x00\xff"),
        blobs.append_many([b"\x01", b"two"]),
    ]


@step
def append_a_value_the_stream_cannot_hold(run: ScenarioRun) -> Any:
    return run.client.stream("blobs").append({"id": 1})


@step
def append_under_a_key(run: ScenarioRun) -> Any:
    orders = run.client.stream("orders")
    return [orders.append({"id": 7}, idempotency_key="order-7") for _ in range(2)]


@step
def append_something_else_under_a_key(run: ScenarioRun) -> Any:
    return run.client.stream("orders").append({"id": 8}, idempotency_key="order-7")


@step
def append_on_conditions(run: ScenarioRun) -> Any:
    orders = run.client.stream("orders")
    end = orders.head().next_offset
    return [orders.append("here", if_match=end), orders.append("numbered", seq="0001")]


@step
def append_where_the_stream_does_not_end(run: ScenarioRun) -> Any:
    return run.client.stream("orders").append("late", if_match=offset(1))


@step
def append_a_number_that_does_not_grow(run: ScenarioRun) -> Any:
    return run.client.stream("orders").append("again", seq="0001")


@step
def append_to_no_stream(run: ScenarioRun) -> Any:
    return run.client.stream("nowhere").append("x")


@step
def append_to_a_stream_made_anew_with_another_type(run: ScenarioRun) -> Any:
    changed = run.client.stream("changed").create("text/plain")
    changed.append("text")
    run.other.stream("changed").delete()
    run.other.stream("changed").create("application/json")
    return changed.append("json")


@step
def append_without_recognition(run: ScenarioRun) -> Any:
    unguarded = run.client.stream("unguarded")
    return [unguarded.append("once", idempotency_key="k") for _ in range(2)]


@step
def append_and_close(run: ScenarioRun) -> Any:
    ended = run.client.stream("ended").create("text/plain")
    return [ended.append("one"), ended.append("two", close=True), ended.close()]


@step
def close_with_and_without_a_last_message(run: ScenarioRun) -> Any:
    last = run.client.stream("last").create("application/json")
    bare = run.client.stream("bare").create()
    return [last.close({"bye": 1}), bare.close(), bare.close()]


@step
def append_to_a_closed_stream(run: ScenarioRun) -> Any:
    return run.client.stream("ended").append("three")


# ---- reading -------------------------------------------------------------------------------------


@step
def read_from_the_start(run: ScenarioRun) -> Any:
    return list(run.client.stream("orders").read())


@step
def read_a_part(run: ScenarioRun) -> Any:
    return list(run.client.stream("orders").read(offset(2), limit=3))


@step
def read_uncommitted(run: ScenarioRun) -> Any:
    return list(run.client.stream("notes").read(isolation="read_uncommitted"))


@step
def read_all_in_one(run: ScenarioRun) -> Any:
    client = run.client
    return [client.stream("blobs").read_bytes(), client.stream("notes").read_text(offset(1))]


@step
def read_compressed_with_a_token(run: ScenarioRun) -> Any:
    long = run.other.stream("long").create("application/json")
    long.append_many([{"number": number, "text": "x" * 100} for number in range(20)])
    return [message.offset for message in long.read()]


@step
def read_past_the_end(run: ScenarioRun) -> Any:
    return list(run.client.stream("orders").read(offset(1000)))


@step
def read_from_no_offset(run: ScenarioRun) -> Any:
    return list(run.client.stream("orders").read("nonsense"))


@step
def read_no_stream(run: ScenarioRun) -> Any:
    return list(run.client.stream("nowhere").read())


@step
def tail_a_closed_stream(run: ScenarioRun) -> Any:
    return list(run.client.stream("ended").tail())


@step
def tail_as_messages_come(run: ScenarioRun) -> Any:
    followed = run.client.stream("followed").create("application/json")
    followed.append_many([0, 1])
    found = []
    with followed.tail() as tail:
        found += [next(tail), next(tail)]
        for value in (2, 3):
            followed.append(value)
            found.append(next(tail))
        followed.close()
        found += list(tail)
    return found


@step
def tail_from_now(run: ScenarioRun) -> Any:
    later = run.client.stream("later").create("text/plain", body="before")
    with later.tail("now") as tail:
        # Both kinds of client request the end of the stream before they begin to read.
        later.append("after", close=True)
        return list(tail)


@step
def tail_by_events(run: ScenarioRun) -> Any:
    run.client.stream("raw").create(body=b"\x00\x01", closed=True)
    paths = ("last", "ended", "raw")
    return [list(run.client.stream(path).tail(live="sse")) for path in paths]


@step
def tail_a_stream_that_is_made_anew(run: ScenarioRun) -> Any:
    anew = run.client.stream("anew").create("text/plain", body="one")
    with anew.tail() as tail:
        found = [next(tail)]
        run.other.stream("anew").delete()
        run.other.stream("anew").create("text/plain", body="another")
        return [*found, next(tail)]


# ---- the stream as a whole -----------------------------------------------------------------------


@step
def fork_a_stream(run: ScenarioRun) -> Any:
    orders = run.client.stream("orders")
    orders.fork("forks/all")
    orders.fork("forks/two", offset=offset(2))
    run.client.stream("notes").fork("forks/part", offset=offset(1), sub_offset=3, closed=True)
    paths = ("forks/all", "forks/two", "forks/part")
    return [run.client.stream(path).head() for path in paths]


@step
def fork_no_stream(run: ScenarioRun) -> Any:
    run.client.stream("nowhere").fork("forks/none")


@step
def trim_a_stream(run: ScenarioRun) -> Any:
    followed = run.client.stream("followed")
    followed.trim(offset(2))
    return [message.value for message in followed.read()]


@step
def read_what_is_trimmed(run: ScenarioRun) -> Any:
    return list(run.client.stream("followed").read(offset(0)))


@step
def trim_past_the_end(run: ScenarioRun) -> Any:
    run.client.stream("followed").trim(offset(50))


@step
def delete_streams(run: ScenarioRun) -> Any:
    for path in ("bare", "notes"):
        run.client.stream(path).delete()
    return [run.client.stream(path).exists() for path in ("bare", "notes")]


@step
def read_a_deleted_stream_that_has_a_fork(run: ScenarioRun) -> Any:
    return list(run.client.stream("notes").read())


@step
def delete_a_stream_that_is_not_there(run: ScenarioRun) -> Any:
    run.client.stream("bare").delete()


@step
def list_streams(run: ScenarioRun) -> Any:
    return list(run.client.streams())


@step
def list_streams_of_a_prefix(run: ScenarioRun) -> Any:
    listed = [run.client.streams("forks/"), run.client.streams("forks/", after="forks/part")]
    return [[entry.path for entry in entries] for entries in listed]
