"""What a command may say at all: names, numbers and batches within their limits.

A front door refuses nonsense in its own words. This is the last door: what passes here can be
stored, indexed and read back, so one bad value can never end the engine.
"""

from semel.model.commands import (
    DENSE,
    SPARSE,
    Append,
    Batch,
    ClaimProducer,
    Create,
    ExpireProducer,
    ForgetProducer,
    ProducerTag,
    Register,
    Trim,
)
from semel.model.limits import (
    CURSOR_BYTES_MAX,
    IDEMPOTENCY_KEY_BYTES_MAX,
    INCARNATION_BYTES_MAX,
    MEDIA_TYPE_BYTES_MAX,
    NUMBER_MAX,
    PATH_BYTES_MAX,
    PRODUCER_ID_BYTES_MAX,
    SESSION_BYTES_MAX,
    STREAM_SEQ_BYTES_MAX,
)
from semel.model.spelling import is_batch, is_name, is_number
from semel.model.transactions import EngineCommand, TxnCommand
from semel.model.txn_names import fault_in_txn, fault_in_txn_tag


def fault_in(command: EngineCommand) -> str | None:
    """Name the field of a command that is out of bounds; None if all is well."""
    if command.now_ms > NUMBER_MAX:
        return "now"
    if isinstance(command, Append):
        return _fault_in_append(command)
    if isinstance(command, TxnCommand):
        return fault_in_txn(command)
    if isinstance(command, Register):
        producer_id = command.producer_id
        if producer_id is not None and not is_name(producer_id, PRODUCER_ID_BYTES_MAX):
            return "producer_id"
        return None if is_number(command.first_epoch) else "producer_epoch"
    if not is_name(command.path, PATH_BYTES_MAX):
        return "path"
    if isinstance(command, Create):
        return _fault_in_create(command)
    if isinstance(command, Trim):
        return None if is_number(command.before) else "before"
    if isinstance(command, ClaimProducer | ForgetProducer | ExpireProducer):
        return _fault_in_producer(command)
    return None


def _fault_in_append(command: Append) -> str | None:
    if command.batch is not None and not is_batch(command.batch):
        return "batch"
    if command.producer is not None:
        fault = _fault_in_tag(command.producer)
        if fault is not None:
            return fault
    if command.transaction is not None:
        fault = fault_in_txn_tag(command.transaction)
        if fault is not None:
            return fault
    if command.stream_seq is not None and not is_name(command.stream_seq, STREAM_SEQ_BYTES_MAX):
        return "stream_seq"
    if command.key is None:
        return None
    if command.producer is not None or not is_name(command.key, IDEMPOTENCY_KEY_BYTES_MAX):
        return "idempotency_key"
    return None


def _fault_in_tag(tag: ProducerTag) -> str | None:
    if not is_name(tag.id, PRODUCER_ID_BYTES_MAX):
        return "producer_id"
    if not 0 <= tag.first_seq <= tag.last_seq <= NUMBER_MAX:
        return "producer_seq"
    if tag.mode != SPARSE and (tag.mode != DENSE or tag.first_seq != tag.last_seq):
        return "producer_mode"
    if tag.epoch is not None and not 0 <= tag.epoch <= NUMBER_MAX:
        return "producer_epoch"
    if tag.session is not None and not is_name(tag.session, SESSION_BYTES_MAX):
        return "producer_session"
    if tag.cursor is not None and len(tag.cursor) > CURSOR_BYTES_MAX:
        return "producer_cursor"
    return None


def _fault_in_producer(command: ClaimProducer | ForgetProducer | ExpireProducer) -> str | None:
    if not is_name(command.producer_id, PRODUCER_ID_BYTES_MAX):
        return "producer_id"
    if not isinstance(command, ClaimProducer):
        return None
    if command.mode not in (DENSE, SPARSE):
        return "producer_mode"
    return None if is_name(command.session, SESSION_BYTES_MAX) else "producer_session"


def _fault_in_create(command: Create) -> str | None:
    media_type, fork, batch = command.content_type, command.fork, command.batch
    if not is_name(command.incarnation, INCARNATION_BYTES_MAX):
        return "incarnation"
    if media_type is not None and not is_name(media_type, MEDIA_TYPE_BYTES_MAX):
        return "content_type"
    if command.ttl_ms is not None and not is_number(command.ttl_ms):
        return "ttl"
    if command.expires_at_ms is not None and abs(command.expires_at_ms) > NUMBER_MAX:
        return "expires_at"
    if batch is not None and not is_batch(batch):
        return "batch"
    if fork is None:
        return None
    numbers = (fork.sub_offset, 0 if fork.offset is None else fork.offset)
    return None if all(map(is_number, numbers)) else "fork"


def adds_up(batch: Batch, *, is_joined: bool) -> bool:
    """Tell whether the lengths of several messages divide their payload without a rest.

    Only whoever knows the stream's media type can ask: JSON messages have a comma between them.
    """
    commas = batch.count - 1 if is_joined else 0
    return sum(memoryview(batch.lengths).cast("I")) + commas == len(batch.payload)
