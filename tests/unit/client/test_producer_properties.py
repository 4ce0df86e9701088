"""With any network faults, each message is stored once, in order, or a correct error is set."""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from semel.client.errors import (
    Indeterminate,
    PayloadMismatch,
    ProducerExpired,
    ProducerFenced,
    ProtocolError,
    SequenceGap,
    Unavailable,
)
from semel.client.producer.outcomes import BatchAck
from tests.unit.client.producer_model import (
    Answer,
    ModelServer,
    Network,
    make,
    make_claimed,
    make_resumed,
    refusal,
)

ACTIONS = (
    "append",
    "send",
    "serve",
    "deliver",
    "lose",
    "busy",
    "limited",
    "broken_before",
    "broken_after",
    "haunt",
    "wait",
)
actions = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 7)), min_size=1, max_size=80)


def broken() -> Answer:
    return Answer(502, {"content-type": "text/plain"}, b"bad gateway")


class Script:
    """Runs a list of actions. Messages are numbered in the order of the appends."""

    def __init__(self, network: Network, *, is_sparse: bool = False) -> None:
        self.network = network
        self.is_sparse = is_sparse
        self.elapsed = 0.0
        self.first = 0  # the number of the first message
        self.messages: list[bytes] = []

    def play(self, steps: list[tuple[str, int]]) -> None:
        for name, number in steps:
            getattr(self, name)(number)
            assert self.network.core.in_flight_count <= 5

    def append(self, number: int) -> None:
        core = self.network.core
        if core.failure is not None:
            return
        for _ in range(number + 1):
            raw = b"%d" % (self.first + len(self.messages))
            seq = 10 * len(self.messages) if self.is_sparse else None
            core.append(raw, self.network.now, seq=seq)
            self.messages.append(raw)

    def send(self, number: int) -> None:
        for _ in range(number + 1):
            self.network.send()

    def serve(self, number: int) -> None:
        for _ in range(number + 1):
            self.network.serve()

    def deliver(self, number: int) -> None:
        for _ in range(number + 1):
            self.network.deliver()

    def lose(self, number: int) -> None:
        for _ in range(number):
            self.network.serve()
        self.network.lose()

    def busy(self, _: int) -> None:
        self.network.serve(refusal(503, "overloaded", {"retry-after": "1"}), is_taken=False)

    def limited(self, _: int) -> None:
        self.network.serve(Answer(429, {}), is_taken=False)

    def broken_before(self, _: int) -> None:
        self.network.serve(broken(), is_taken=False)

    def broken_after(self, _: int) -> None:
        self.network.serve(broken())

    def haunt(self, number: int) -> None:
        self.network.haunt(number)

    def forget(self, _: int) -> None:
        self.network.server.forget()

    def idle(self, number: int) -> None:
        """Let time pass. After ten minutes, nothing is left of a forgotten producer."""
        self.network.wait(100.0 * number)
        self.elapsed += 100.0 * number
        if self.elapsed > 600:
            self.network.server.tombstone, self.elapsed = None, 0.0
            self.network.ghosts.clear()  # the network holds no request for so long

    def wait(self, number: int) -> None:
        self.network.wait(number / 4)


def check_truth(script: Script) -> None:
    """Check that acknowledged messages are stored, failed ones are not, and none is there twice."""
    network, log = script.network, script.network.server.log
    ours = [raw for raw in log if not raw.startswith(b'"')]  # a rival's messages are strings
    assert len(set(ours)) == len(ours)
    at = 0
    confirmed: list[bytes] = []
    for event in network.events:
        messages = script.messages[at : at + event.count]
        at += event.count
        if isinstance(event, BatchAck):
            confirmed += messages
            continue
        assert event.values == messages
        if event.applied == "no":
            assert not set(messages) & set(ours)
    assert at == len(script.messages)
    assert [raw for raw in ours if raw in set(confirmed)] == confirmed
    assert ours == sorted(ours, key=int)


def run(steps: list[tuple[str, int]], **settings: Any) -> Script:
    script = Script(make_resumed(**settings), is_sparse=settings.get("mode") == "sparse")
    script.play(steps)
    script.network.drain()
    while any(script.network.ghosts):
        for which in range(len(script.network.ghosts)):
            script.network.haunt(which)
    return script


batching = st.sampled_from(({"max_batch_bytes": 12}, {"max_batch_messages": 1}, {}, {"linger": 1}))
identities = st.sampled_from(({"session": "s"}, {"epoch": 3}, {"is_claiming": True}))


# rows: D01, D28
@given(actions, identities, batching)
def test_every_message_is_stored_once_and_in_order(
    steps: list[tuple[str, int]], identity: dict[str, Any], sizes: dict[str, Any]
) -> None:
    script = run(steps, **identity, **sizes)
    assert script.network.core.failure is None
    assert script.network.server.log == script.messages
    assert sum(ack.count for ack in script.network.acked) == len(script.messages)
    assert [ack.seq for ack in script.network.acked] == list(range(len(script.network.acked)))
    assert not script.network.core.pending_count
    assert not script.network.core.acks.pending_bytes


# rows: P09
@given(actions, batching)
def test_a_sparse_producer_stores_every_message_once_and_in_order(
    steps: list[tuple[str, int]], sizes: dict[str, Any]
) -> None:
    script = run(steps, mode="sparse", **sizes)
    assert script.network.core.failure is None
    assert script.network.server.log == script.messages
    assert sum(ack.count for ack in script.network.acked) == len(script.messages)


@given(actions, actions, identities, batching, st.integers(0, 9), st.booleans())
def test_a_rival_may_end_it_but_never_makes_it_lie(
    before: list[tuple[str, int]],
    after: list[tuple[str, int]],
    identity: dict[str, Any],
    sizes: dict[str, Any],
    raised: int,
    is_resumed: bool,
) -> None:
    script = Script((make_resumed if is_resumed else make)(**identity, **sizes))
    script.play(before)
    rival = {"producer-id": "p", "producer-epoch": str(raised), "producer-seq": "0"}
    script.network.server.take(rival, b'["rival"]')
    script.play(after)
    script.network.drain()
    while any(script.network.ghosts):
        for which in range(len(script.network.ghosts)):
            script.network.haunt(which)
    failure = script.network.core.failure
    assert failure is None or isinstance(failure, ProducerFenced | PayloadMismatch | Indeterminate)
    check_truth(script)


@given(actions, actions, identities, batching)
def test_a_closed_stream_ends_it_and_it_tells_what_was_stored(
    before: list[tuple[str, int]],
    after: list[tuple[str, int]],
    identity: dict[str, Any],
    sizes: dict[str, Any],
) -> None:
    script = Script(make(**identity, **sizes))
    script.play(before)
    script.network.server.is_closed = True
    script.play(after)
    script.network.drain()
    check_truth(script)
    if script.network.core.failure is None:
        assert script.network.server.log == script.messages


# rows: P11, X02
@given(actions, st.integers(0, 40))
def test_a_sparse_producer_goes_on_where_an_earlier_one_ended(
    steps: list[tuple[str, int]], stored: int
) -> None:
    server = ModelServer()
    early = Script(make(server, mode="sparse", session="early"), is_sparse=True)
    early.play([("append", 7)] * (stored // 8))
    early.network.drain()
    late = Script(make(server, mode="sparse", session="late", max_batch_messages=7), is_sparse=True)
    late.play(steps)
    late.network.drain()
    longest = max((early.messages, late.messages), key=len)
    assert late.network.core.failure is None
    assert server.log == longest


# rows: P11, X02
@given(actions, st.lists(actions, max_size=4), st.integers(1, 30), batching)
def test_a_producer_that_claims_goes_on_by_its_cursor_whatever_the_earlier_one_sent(
    before: list[tuple[str, int]],
    after: list[list[tuple[str, int]]],
    more: int,
    sizes: dict[str, Any],
) -> None:
    server = ModelServer()
    early = Script(make_claimed(server, "early", **sizes))
    early.play(before)
    early.network.lose()
    late = Script(make_claimed(server, "late", **sizes))
    late.messages = list(server.log)  # done, by the cursor of the claim
    late.play([("append", 0)] * more)
    for steps in after:
        early.network.haunt(0)
        late.play(steps)
    while any(early.network.ghosts):
        for which in range(len(early.network.ghosts)):
            early.network.haunt(which)
    late.network.drain()
    assert late.network.core.failure is None
    assert server.log == late.messages


# rows: D02, D11
@given(actions, actions, batching, st.booleans())
def test_a_new_session_begins_with_its_first_batch_behind_an_earlier_instance(
    before: list[tuple[str, int]],
    steps: list[tuple[str, int]],
    sizes: dict[str, Any],
    is_semel: bool,
) -> None:
    server = ModelServer()
    early = Script(make(server, session="early", **sizes))
    early.append(0)
    early.network.drain()
    early.play(before)
    early.network.lose()
    late = Script(make(server, session="late", is_semel=is_semel, **sizes))
    late.first = 10_000
    late.play([("append", 0), *steps])
    late.network.drain()
    while any(early.network.ghosts):
        for which in range(len(early.network.ghosts)):
            early.network.haunt(which)
    assert late.network.core.failure is None
    assert [raw for raw in server.log if int(raw) >= late.first] == late.messages


# ---- a producer without a name -------------------------------------------------------------------

EXPIRING: dict[str, Any] = {
    "session": "s",
    "expires": 86_400,
    "delivery_timeout": 120.0,
    "is_semel": True,
}
modes = st.sampled_from(({}, {"mode": "sparse"}))
lives = st.lists(
    # Often enough, a stored batch without a response meets a server that has forgotten it.
    st.tuples(
        st.sampled_from((*ACTIONS, *["append", "send", "lose", "forget"] * 5, "idle")),
        st.integers(0, 7),
    ),
    min_size=1,
    max_size=80,
)


# rows: P06
@given(lives, batching, modes)
def test_a_forgotten_producer_goes_on_or_tells_what_is_unknown(
    steps: list[tuple[str, int]], sizes: dict[str, Any], mode: dict[str, Any]
) -> None:
    is_sparse = bool(mode)
    script = Script(make(**EXPIRING, **sizes, **mode), is_sparse=is_sparse)
    script.play(steps)
    script.network.drain()
    failure = script.network.core.failure
    assert failure is None or isinstance(
        failure, ProducerExpired | Indeterminate | Unavailable | SequenceGap
    )
    check_truth(script)
    if failure is None:
        assert script.network.server.log == script.messages


# rows: P06
@example(  # the first response of the first life says that the batch is a duplicate
    [
        ([("append", 0), ("send", 0), ("lose", 1)], True, 1),
        ([("append", 0), ("send", 0), ("lose", 0)], False, 0),
    ],
    {},
    {"mode": "sparse"},
)
@given(st.lists(st.tuples(actions, st.booleans(), st.integers(0, 20)), max_size=5), batching, modes)
def test_a_producer_that_is_forgotten_while_it_is_idle_never_fails(
    lives: list[tuple[list[tuple[str, int]], bool, int]],
    sizes: dict[str, Any],
    mode: dict[str, Any],
) -> None:
    script = Script(make(**EXPIRING, **sizes, **mode), is_sparse=bool(mode))
    for steps, is_forgotten, hundreds in lives:
        script.play(steps)
        script.network.drain()
        if is_forgotten:
            script.forget(0)
        script.idle(hundreds)
        if is_forgotten and not hundreds:
            script.append(0)  # after a short idle time, the response must show that it is forgotten
            script.network.drain()
    script.append(0)
    script.network.drain()
    assert script.network.core.failure is None
    assert script.network.server.log == script.messages
    assert sum(ack.count for ack in script.network.acked) == len(script.messages)


# ---- closing the stream --------------------------------------------------------------------------


# rows: D41
@given(actions, actions, identities, batching, st.booleans())
def test_the_last_batch_closes_the_stream_once(
    before: list[tuple[str, int]],
    after: list[tuple[str, int]],
    identity: dict[str, Any],
    sizes: dict[str, Any],
    is_semel: bool,
) -> None:
    script = Script(make_resumed(is_semel=is_semel, **identity, **sizes))
    script.play(before)
    script.network.core.close_stream(script.network.now)
    script.play([step for step in after if step[0] != "append"])
    script.network.drain()
    server = script.network.server
    assert script.network.core.failure is None
    assert server.is_closed
    assert server.log == script.messages
    assert [ack.closed for ack in script.network.acked] == [False] * (
        len(script.network.acked) - 1
    ) + [True]
    while any(script.network.ghosts):
        for which in range(len(script.network.ghosts)):
            script.network.haunt(which)
    assert server.log == script.messages


# rows: D41, P09
@given(actions, actions, batching)
def test_a_sparse_producer_closes_a_stream_that_an_earlier_one_filled(
    before: list[tuple[str, int]], after: list[tuple[str, int]], sizes: dict[str, Any]
) -> None:
    server = ModelServer()
    early = Script(make(server, mode="sparse", session="early"), is_sparse=True)
    early.play([step for step in before if step[0] == "append"])
    early.network.drain()
    late = Script(make(server, mode="sparse", session="late", **sizes), is_sparse=True)
    while len(late.messages) < max(len(early.messages), 1):
        late.append(0)
    late.network.core.close_stream(0.0)
    late.play([step for step in after if step[0] != "append"])
    late.network.drain()
    assert late.network.core.failure is None
    assert server.is_closed
    assert server.log == late.messages


# ---- a stream that does not recognise duplicates -------------------------------------------------


@given(actions, identities, batching)
def test_without_dedup_nothing_is_sent_again_that_may_be_stored(
    steps: list[tuple[str, int]], identity: dict[str, Any], sizes: dict[str, Any]
) -> None:
    script = Script(make(is_semel=True, **identity, **sizes))
    script.network.server.has_dedup = False
    steps = [step for step in steps if step[0] != "haunt"]
    script.play(steps)
    script.network.drain()
    check_truth(script)
    assert not script.messages or isinstance(
        script.network.core.failure, Indeterminate | ProtocolError
    )


@given(st.lists(st.tuples(actions, st.integers(1, 2)), max_size=4), identities, batching)
def test_nothing_is_stored_twice_while_dedup_is_switched_off_and_on(
    phases: list[tuple[list[tuple[str, int]], int]],
    identity: dict[str, Any],
    sizes: dict[str, Any],
) -> None:
    script = Script(make(is_semel=True, **identity, **sizes))
    for steps, switches in phases:
        script.network.server.was_asked = False
        script.play([step for step in steps if step[0] != "haunt"])
        if script.network.server.was_asked:
            script.network.drain()  # no client can see a switch between its question and its repeat
        for _ in range(switches):
            script.network.server.switch()
    script.network.drain()
    check_truth(script)
