"""Random commands must have the same outcomes and state in the machine and the model."""

from typing import NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from semel.journal import frame as codec
from semel.machine import MachineLimits, State, apply, decide
from semel.model import commands as ask
from semel.model.commands import DENSE, SPARSE, Batch, Command, ForkRequest, StoredAppend
from semel.model.limits import NUMBER_MAX
from semel.model.messages import encode_extras
from semel.model.producer_commands import (
    CountHour,
    DropTombstones,
    RetiredProducer,
    RetireProducers,
    Tombstone,
)
from tests.sim.oracle import state_view
from tests.sim.reference import Model
from tests.sim.reference_producers import Producer
from tests.unit.machine.builders import (
    JSON,
    TEXT,
    Machine,
    Written,
    json_batch,
    reloaded,
    snapshot,
)

STEPS = 50
LIMITS = MachineLimits(
    receipts=3,
    streams=4,
    producers_per_stream=2,
    keys=2,
    key_hours=2,
    expiring_producers_per_stream=1,
    tombstones_per_stream=2,
)


# ---- random steps, relative to the state of the model --------------------------------------------


class Step(NamedTuple):
    """A random step. Its numbers are relative to the state, so that most steps test a rule."""

    verb: str
    path: str
    source: str
    name: str
    mode: str
    session: str | None
    epoch: int | None  # relative to the producer's epoch
    ahead: int  # relative to the producer's last sequence, or to the tail
    span: int
    body: bytes | None
    flags: frozenset[str]
    later_ms: int


steps = st.builds(
    Step,
    st.sampled_from(
        ["produce"] * 22
        + ["append"] * 4
        + ["create", "fork", "fork", "register"]
        + ["delete", "trim", "expire", "bury", "bury", "forget", "switch"]
        + ["claim", "claim", "claim", "hour", "retire", "retire", "drop"]
    ),
    st.sampled_from("aaaaaabc"),
    st.sampled_from("abc"),
    st.sampled_from(["p"] * 8 + ["q", "r", "1"]),
    st.sampled_from([DENSE] * 4 + [SPARSE] * 3),
    st.sampled_from([None] * 6 + ["x", "x", "y", "z"]),
    st.sampled_from([None] * 12 + [0] * 6 + [1] * 3 + [2, -1, NUMBER_MAX]),
    st.sampled_from([1] * 7 + [0, 0, -1, -2, -3, -4, -5, -7, 2, 3, -99, -99]),
    st.sampled_from([0, 0, 0, 1, 2, 3]),
    st.sampled_from([b"u"] * 8 + [b"v"] * 4 + [b"w", None]),
    st.frozensets(
        st.sampled_from(
            ["plain"] * 14
            + ["json", "close", "error", "seq", "match", "key", "key", "strict", "strict"]
            + ["cursor", "dated", "typed", "extras", "extras", "idle", "idle"]
        ),
        max_size=2,
    ),
    st.sampled_from([0, 0, 0, 1, 5, 16, 16, -3, 40]),
)


def _likely_verb(step: Step, model: Model) -> str:
    """Return the verb, changed so that most appends find an existing, open stream."""
    stream = model.streams.get(step.path)
    if step.verb not in ("produce", "append"):
        return step.verb
    if stream is None:
        return "create"
    return "delete" if stream.is_closed and step.span == 1 else step.verb


def command_of(step: Step, model: Model) -> Command:
    now = model.time_ms + step.later_ms
    stream = model.streams.get(step.path)
    match _likely_verb(step, model):
        case "create" | "fork":
            return _create(step, model, now)
        case "produce" | "append":
            return _append(step, model, now)
        case "delete":
            return ask.Delete(step.path, now)
        case "trim":
            tail = 0 if stream is None else stream.tail
            return ask.Trim(step.path, now, max(0, tail + step.ahead - 2))
        case "expire":
            return ask.Expire(step.path, now, step.span)
        case "bury" | "forget" | "claim":
            return _on_producer(step, model, now)
        case "hour":
            return CountHour(now)
        case "retire" | "drop":
            return _end(step, model, now)
        case "switch":
            is_off = stream is not None and stream.dedup_from is None
            return ask.SwitchDedup(step.path, now, is_off or step.span == 1)
        case _:
            name = None if step.session is None and step.span else step.name
            return ask.Register(now, name, min(step.span, 1))


def _on_producer(
    step: Step, model: Model, now: int
) -> ask.ExpireProducer | ask.ForgetProducer | ask.ClaimProducer:
    if step.verb == "bury":
        return ask.ExpireProducer(step.path, now, step.name, step.span, now % 5)
    if step.verb == "forget":
        return ask.ForgetProducer(step.path, now, step.name)
    stream = model.streams.get(step.path)
    known = None if stream is None else stream.producers.get(step.name)
    mode = step.mode if known is None or "typed" in step.flags else known.mode
    return ask.ClaimProducer(step.path, now, step.name, step.session or f"s{step.span}", mode)


def _end(step: Step, model: Model, now: int) -> RetireProducers | DropTombstones:
    stream = model.streams.get(step.path)
    if step.verb == "drop":
        number = 0 if stream is None or step.span == 3 else stream.number
        return DropTombstones(now, (Tombstone(number, step.name, 600_000 * step.span),), 0)
    known = None if stream is None else stream.producers.get(step.name)
    if step.span == 3:
        return RetireProducers(now, (RetiredProducer(step.name, None, max(step.epoch or 0, 0)),))
    epoch = 0 if known is None else known.epoch
    session = step.session if known is None else known.session
    return RetireProducers(now, (RetiredProducer(step.name, step.path, epoch, session),))


def _create(step: Step, model: Model, now: int) -> ask.Create:
    kind = JSON if "json" in step.flags else TEXT
    kind_given: str | None = kind
    wanted = None
    if step.verb == "fork":
        source = model.streams.get(step.source)
        kind_given = kind if "typed" in step.flags else None
        kind = kind_given or (TEXT if source is None else source.content_type)
        wanted = _fork_request(step, model)
    return ask.Create(
        step.path,
        now,
        f"i-{now}",
        kind_given,
        20 if "match" in step.flags else None,
        now + 10 if "dated" in step.flags else None,
        "close" in step.flags,
        None if step.body is None else _batch(step, kind),
        "bad" if "error" in step.flags else None,
        wanted,
        {1: True, 2: False}.get(step.span) if "key" in step.flags else None,
        "strict" not in step.flags,
    )


def _fork_request(step: Step, model: Model) -> ForkRequest:
    source = model.streams.get(step.source)
    if source is None or step.ahead == 1:
        return ForkRequest(step.source, None, 0)
    offset = max(0, source.tail + step.ahead)
    stored = None
    if source.head <= offset < source.tail:
        message = source.messages[offset - source.head]
        units = message.append_end - offset if source.is_json else len(message.body)
        stored = StoredAppend(source.number, offset, units, message.body)
    return ForkRequest(step.source, offset, step.span, stored)


def _batch(step: Step, kind: str) -> Batch:
    assert step.body is not None
    batch = Batch(step.body)
    if kind == JSON and step.span:
        batch = json_batch(*[step.body] * (step.span + 1))
    if "extras" in step.flags:
        keys = [b"k%d" % step.span, *[None] * (batch.count - 1)]
        batch = replace(batch, extras=encode_extras(batch.count, keys=keys))
    return batch


def _append(step: Step, model: Model, now: int) -> ask.Append:
    stream = model.streams.get(step.path)
    kind = TEXT if stream is None else stream.content_type
    has_error = "error" in step.flags
    batch = None if step.body is None or has_error else _batch(step, kind)
    is_produced = step.verb == "produce"
    if_match = stream_seq = None
    if "match" in step.flags and stream is not None:
        if_match = max(0, stream.tail + min(step.ahead, 1) - 1)
    if "seq" in step.flags:
        stream_seq = f"{now + step.ahead:04d}"
    return ask.Append(
        step.path,
        now,
        JSON if "json" in step.flags else kind,
        batch,
        "bad" if has_error else None,
        "close" in step.flags or (batch is None and not has_error),
        _tag(step, model) if is_produced else None,
        stream_seq,
        if_match,
        f"k{step.span}" if "key" in step.flags and not is_produced else None,
    )


def _tag(step: Step, model: Model) -> ask.ProducerTag:
    stream = model.streams.get(step.path)
    known = None if stream is None else stream.producers.get(step.name)
    base = Producer(step.mode, model.registry.get(step.name, 1), -1) if known is None else known
    mode = base.mode if "typed" not in step.flags else step.mode
    first = max(0, base.last + step.ahead)
    epoch = step.epoch
    if epoch is not None and epoch != NUMBER_MAX:
        epoch = min(max(0, base.epoch + epoch), NUMBER_MAX)
    return ask.ProducerTag(
        step.name,
        first,
        first + (step.span if mode == SPARSE else 0),
        epoch,
        step.session,
        mode,
        b"c%d" % step.span if "cursor" in step.flags else None,
        "strict" in step.flags,
        60_000 if "idle" in step.flags else 0,
    )


# ---- the comparison ------------------------------------------------------------------------------


def through_the_codec(written: Written) -> Written:
    meta = codec.encode_meta(written.event)
    encoded = codec.encode(
        codec.KINDS[type(written.event)],
        meta,
        written.sections,
        length=codec.frame_bytes(meta, written.sections),
        lsn=0,
        watermark=0,
        time_ms=written.time_ms,
        previous_crc=0,
        seed=7,
    )
    read = codec.decode(b"".join(encoded.buffers), 0, lsn=0, seed=7)
    assert not isinstance(
        read.record, codec.SegmentStarted | codec.SegmentEnded | codec.WatermarkMoved
    )
    return Written(read.record, read.sections, read.time_ms)


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, min_size=STEPS, max_size=STEPS))
def test_random_commands_are_answered_and_remembered_as_the_rule_book_says(
    run: list[Step],
) -> None:
    model = Model(
        *(getattr(LIMITS, name) for name in LIMITS.__struct_fields__[:5]),
        expiring_max=1,
        tombstones_max=2,
    )
    machine = Machine(LIMITS)
    command: Command = ask.Create("a", 0, "i", TEXT)
    for step in run:
        before = snapshot(machine.state)
        decide(machine.state, command)
        assert snapshot(machine.state) == before, "decide changed the state"
        assert machine.execute(command) == model.execute(command), command
        assert state_view(machine.state) == model.view(), command
        command = command_of(step, model)
    twin = State(LIMITS)
    for written in machine.journal:
        apply(twin, *through_the_codec(written))
    assert snapshot(twin) == snapshot(machine.state), "the replayed state differs"
    assert state_view(reloaded(machine.state)) == state_view(machine.state)
