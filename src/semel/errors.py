"""The errors that semel's client raises.

    SemelError
    ├── Refused                  the server refused the request; see `applied`
    │   ├── BadRequest           the request is invalid: correct the call
    │   │   ├── OffsetBeyondTail
    │   │   └── TooLarge
    │   ├── Unauthenticated      no valid token; never sent again with the same token
    │   ├── Forbidden            the token lacks `right` on the thing `kind`, `name`
    │   ├── StreamNotFound · StreamGone · StreamExists · StreamClosed · PolicyNotFound
    │   ├── StreamRestored       the data was restored from an older copy during the read
    │   ├── ConfigConflict · ContentTypeConflict · StreamSeqConflict
    │   ├── PreconditionFailed   the tail is `next_offset`, not the offset in If-Match
    │   ├── OffsetTrimmed        the messages there were trimmed; start at `head`
    │   ├── ProducerRefused      the sequence or epoch does not match the producer's state
    │   │   ├── ProducerFenced   a newer instance owns the id, under `current_epoch`
    │   │   ├── SequenceGap      sequence `expected` must be stored before `received`
    │   │   ├── SequenceExpired  it is not known whether the sequence was stored before
    │   │   ├── BatchOverlap     the batch overlaps stored sequences, which end at `last_seq`
    │   │   ├── ProducerExpired  the producer was idle too long; use an epoch above `current_epoch`
    │   │   ├── RestartAmbiguous
    │   │   └── PayloadMismatch
    │   ├── TransactionRefused   the server refused a request that belongs to a transaction
    │   │   ├── TransactionAborted       nothing was applied; begin a new transaction; see `reason`
    │   │   │   └── TransactionTimedOut  the deadline of the transaction passed
    │   │   ├── TransactionFenced        a newer instance owns the producer (also a ProducerFenced)
    │   │   ├── TransactionCommitted     the transaction is committed and cannot be aborted
    │   │   ├── InvalidTransactionState · UnknownTransaction · ConcurrentTransactions
    │   │   └── PartitionNotInTransaction · TooManyTransactions · BranchIncomplete · BranchMissing
    │   ├── PositionRefused      the position of `group` in `stream` cannot be moved
    │   │   ├── PositionConflict the position has moved since it was read; it is now at `offset`
    │   │   ├── UnstableOffsets  a pending transaction can still move the position
    │   │   ├── IllegalGeneration  the member does not own the stream any more, or not yet
    │   │   └── GroupIsShared    a member of the group owns the stream
    │   ├── GroupNotFound · GroupInUse · UnknownMember
    │   ├── TopicNotFound · TopicConflict · PartitionNotFound · TooFewPartitions · KeysWouldMove
    │   ├── PartitionsChanged    the topic has other `partitions` than the client hashed a key for
    │   ├── IsTopic · StreamInTopic   the call is not for a topic, or not for a partition of one
    │   ├── StreamInTransaction · OffsetUnstable   a pending transaction has messages in the stream
    │   ├── SubscriptionRefused  a call about a subscription or its wakes was refused
    │   │   ├── SubscriptionNotFound · SubscriptionExists · WakeStreamRefused
    │   │   ├── WebhookUrlRejected · WrongSubscriptionType
    │   │   └── WakeRefused      the wake cannot be claimed or acked
    │   │       ├── WakeFenced   the wake has ended; another one can have begun
    │   │       ├── AlreadyClaimed   the worker `current_holder` has the wake
    │   │       └── NoPendingWork · InvalidAck · WakeTokenInvalid
    │   ├── SinkRefused          a sink's commit conflicts with an earlier commit
    │   │   └── CheckpointDiverged · AppBound · VersionForgotten
    │   ├── KeyReused            the Idempotency-Key was used before with a different payload
    │   ├── NotSupported         the server is not semel and does not support this call
    │   ├── LimitReached         wait `retry_after` seconds if it is set; otherwise delete something
    │   │   └── DiskFull
    │   └── CorruptData          the stored data is corrupt
    ├── Unavailable              nothing was applied: the server is unreachable or overloaded
    ├── Indeterminate            no response came; the request may have been applied
    ├── ProtocolError            the response does not follow the protocol
    │   └── DamagedResponse      the body is truncated, or is not what its media type says
    ├── UndecodableMessage       the message is not text or JSON; its bytes are in `raw`
    ├── CannotReplay             the next message is not a dead letter that can be replayed
    ├── InstanceReplaced         another consumer has joined the group with the same `instance`
    ├── CallbackFailed           a function for a header, a token or a parameter failed
    └── ClientClosed             the client was used after `close()`

Every error has these attributes:

- `code`: a stable identifier of the error, for programs.
- `message`: a description of the error, for people.
- `advice`: what to do next.
- `applied`: "no" if the request had no effect, "unknown" if it may have had an effect.
"""

# A star, because `__all__` below already has every name.
from semel.client.errors import *  # noqa: F403

__all__ = [  # noqa: F405
    "AlreadyClaimed",
    "AppBound",
    "BadRequest",
    "BatchOverlap",
    "BranchIncomplete",
    "BranchMissing",
    "CallbackFailed",
    "CannotReplay",
    "CheckpointDiverged",
    "ClientClosed",
    "ClientError",
    "ConcurrentTransactions",
    "ConfigConflict",
    "ContentTypeConflict",
    "CorruptData",
    "DamagedResponse",
    "DiskFull",
    "Forbidden",
    "GroupInUse",
    "GroupIsShared",
    "GroupNotFound",
    "IllegalGeneration",
    "Indeterminate",
    "InstanceReplaced",
    "InvalidAck",
    "InvalidTransactionState",
    "IsTopic",
    "KeyReused",
    "KeysWouldMove",
    "LimitReached",
    "NoPendingWork",
    "NotSupported",
    "OffsetBeyondTail",
    "OffsetTrimmed",
    "OffsetUnstable",
    "PartitionNotFound",
    "PartitionNotInTransaction",
    "PartitionsChanged",
    "PayloadMismatch",
    "PolicyNotFound",
    "PositionConflict",
    "PositionRefused",
    "PreconditionFailed",
    "ProducerExpired",
    "ProducerFenced",
    "ProducerRefused",
    "ProtocolError",
    "Refused",
    "RestartAmbiguous",
    "SemelError",
    "SequenceExpired",
    "SequenceGap",
    "SinkRefused",
    "StreamClosed",
    "StreamExists",
    "StreamGone",
    "StreamInTopic",
    "StreamInTransaction",
    "StreamNotFound",
    "StreamRestored",
    "StreamSeqConflict",
    "SubscriptionExists",
    "SubscriptionNotFound",
    "SubscriptionRefused",
    "TooFewPartitions",
    "TooLarge",
    "TooManyTransactions",
    "TopicConflict",
    "TopicNotFound",
    "TransactionAborted",
    "TransactionCommitted",
    "TransactionFenced",
    "TransactionRefused",
    "TransactionTimedOut",
    "Unauthenticated",
    "Unavailable",
    "UndecodableMessage",
    "UnknownMember",
    "UnknownTransaction",
    "UnstableOffsets",
    "VersionForgotten",
    "WakeFenced",
    "WakeRefused",
    "WakeStreamRefused",
    "WakeTokenInvalid",
    "WebhookUrlRejected",
    "WrongSubscriptionType",
]

Unauthorized = Unauthenticated  # noqa: F405 - its name before access was built
