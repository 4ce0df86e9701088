"""The limits of the engine, with their units, and the defaults of those that can be configured.

To configure a limit, set a field of `MachineLimits` or `Settings`. The limits on connections are in
`semel.server`.
"""

from typing import Final

import msgspec
from msgspec import Struct

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# The largest number that a client can send. Every JSON parser represents 2^53-1 exactly.
NUMBER_MAX: Final = 2**53 - 1

# The largest names, batches and bodies that a client can send.
PATH_BYTES_MAX: Final = 512
POLICY_PREFIX_BYTES_MAX: Final = 500
MEDIA_TYPE_BYTES_MAX: Final = 256
INCARNATION_BYTES_MAX: Final = 64
BODY_BYTES_MAX: Final = 4 * MIB
BATCH_MESSAGES_MAX: Final = 10_000
PRODUCER_ID_BYTES_MAX: Final = 256
SESSION_BYTES_MAX: Final = 128
CURSOR_BYTES_MAX: Final = 1 * KIB
STREAM_SEQ_BYTES_MAX: Final = 256
IDEMPOTENCY_KEY_BYTES_MAX: Final = 255
MESSAGE_KEY_BYTES_MAX: Final = 64 * KIB
HEADERS_PER_MESSAGE_MAX: Final = 64
HEADER_NAME_CHARACTERS_MAX: Final = 256
HEADER_VALUE_BYTES_MAX: Final = 64 * KIB
SEQUENCE_SPAN_MAX: Final = 2**32 - 1

# Limits of the state. A command that would exceed a limit is refused. Old entries are not evicted.
STREAMS_MAX: Final = 1_000_000
PRODUCERS_PER_STREAM_MAX: Final = 10_000
EXPIRING_PRODUCERS_PER_STREAM_MAX: Final = 10_000
FORK_DEPTH_MAX: Final = 64
FORKS_PER_STREAM_MAX: Final = 10_000
REGISTRY_MAX: Final = 1_000_000
TOKENS_MAX: Final = 10_000  # those that are revoked or have expired count too
TOKENS_PER_PRINCIPAL_MAX: Final = 1_000  # made without admin; ended ones count for a day
PRINCIPAL_BYTES_MAX: Final = 256
DESCRIPTION_BYTES_MAX: Final = 256
SCOPES_PER_TOKEN_MAX: Final = 100
SCOPE_NAMES_BYTES_MAX: Final = 8 * KIB  # the names in all scopes of a token
POLICIES_MAX: Final = 1_000  # the policy of the root does not count

# Producers that end. The oldest tombstones of a stream leave when there are more than the maximum.
EXPIRES_MS_MIN: Final = 60 * 1000
EXPIRES_MS_MAX: Final = 7 * 24 * 60 * 60 * 1000
RETIRE_LIST_MAX: Final = 1_000
TOMBSTONES_PER_STREAM_MAX: Final = 10_000
TOMBSTONE_HOURS: Final = 168  # of an idle producer, in hours during which a server ran
TOMBSTONE_MS: Final = 10 * 60 * 1000  # of a retired or expiring producer
# A retired registration with a name stays until the outcomes of its transactions are removed.
REGISTRATION_MORE_HOURS: Final = 24

# How many receipts and old sessions are retained for each producer.
RECEIPTS_DEFAULT: Final = 64
RECEIPTS_MIN: Final = 5
SESSIONS_REMEMBERED: Final = 128

# The retention of idempotency keys and transaction outcomes, in hours during which a server ran.
HOUR_MS: Final = 60 * 60 * 1000
IDEMPOTENCY_HOURS: Final = 24
OUTCOME_HOURS: Final = 168
IDEMPOTENCY_KEYS_MAX: Final = 10_000

# Transactions, groups and sinks.
TXN_ID_BYTES_MAX: Final = 256
TXN_TIMEOUT_MS_MAX: Final = 15 * 60 * 1000
TXN_TIMEOUT_MS_DEFAULT: Final = 60 * 1000
TXN_PENDING_MAX: Final = 5
TXN_OPEN_MAX: Final = 10_000
TXN_STREAMS_MAX: Final = 1_000
TXN_POSITIONS_MAX: Final = 1_000
TXN_CHUNKS_MAX: Final = 250_000  # also, their extents must fit in half a segment
TXN_LIST_MAX: Final = 1_000
SINK_TXN_OPEN_MAX: Final = 100_000
SINK_IDLE_MS: Final = 24 * 60 * 60 * 1000
SINK_VERSIONS_KEPT: Final = 128
SINKS_MAX: Final = 10_000
OUTCOMES_PER_PRODUCER_MAX: Final = 10_000
RESULTS_KEPT: Final = 64
RESULTS_BYTES_MAX: Final = 64 * KIB
GROUP_NAME_BYTES_MAX: Final = 256
GROUPS_PER_STREAM_MAX: Final = 10_000
POSITION_METADATA_BYTES_MAX: Final = 4 * KIB  # as JSON
SNAPSHOTS_MAX: Final = 100_000

# Topics, and groups whose members share work.
TOPIC_PARTITIONS_MAX: Final = 1_000
TOPIC_PATH_BYTES_MAX: Final = 500
TOPIC_GROWTHS_MAX: Final = 100
GROUP_MEMBERS_MAX: Final = 1_000
GROUP_STREAMS_MAX: Final = 10_000
GROUP_MOVES_MAX: Final = 1_000  # streams that one frame gives to members or asks back
MEMBER_LIST_MAX: Final = 1_000  # streams or topics that a member names, each
MEMBER_PATTERNS_MAX: Final = 100  # patterns of stream paths that a member names
MEMBER_ID_BYTES_MAX: Final = 64
PATTERN_BYTES_MAX: Final = 512
INSTANCE_BYTES_MAX: Final = 256
GROUPS_SHOWN_MAX: Final = 100  # groups whose lag the metrics page has
SESSION_TIMEOUT_MS_MIN: Final = 1_000
SESSION_TIMEOUT_MS_MAX: Final = 30 * 60 * 1000
DIGEST_BYTES_MAX: Final = 256

# Subscriptions.
SUBSCRIPTIONS_MAX: Final = 10_000
# Subscriptions that name one stream, or whose patterns have the same part before a wildcard.
SUBSCRIPTIONS_PER_STREAM_MAX: Final = 1_000
SUBSCRIPTION_LINKS_MAX: Final = 100_000  # streams that a creation links
SUBSCRIPTION_NAMES_MAX: Final = 1_000
SUBSCRIPTION_ID_BYTES_MAX: Final = 256
SUBSCRIPTION_DESCRIPTION_BYTES_MAX: Final = 1 * KIB
WEBHOOK_URL_BYTES_MAX: Final = 2 * KIB
WORKER_BYTES_MAX: Final = 256
WAKE_ID_BYTES_MAX: Final = 64
WAKE_STREAMS_MAX: Final = 1_000  # in the snapshot of a wake
ACKS_MAX: Final = 1_000  # in one call
SUBSCRIPTION_STREAMS_LISTED: Final = 1_000  # in one page, if the request names no other number
LEASE_MS_MIN: Final = 1_000
LEASE_MS_MAX: Final = 10 * 60 * 1000
DELIVERY_ERROR_BYTES_MAX: Final = 512
WAKES_PER_GROUP_MAX: Final = 100  # issued in one write group
RETRY_MS_MIN: Final = 1_000  # the delay after the first failed delivery of a wake
RETRY_MS_MAX: Final = 60_000

# Deliveries of webhooks.
WEBHOOK_ATTEMPTS_DEFAULT: Final = 1_500  # a day, if each is a minute after the one before it
WEBHOOK_ATTEMPTS_MAX: Final = 1_000_000
WEBHOOK_CONNECT_MS: Final = 5_000  # lookup of the name, connection and TLS together
WEBHOOK_TOTAL_MS: Final = 10_000
WEBHOOK_RESPONSE_BYTES_MAX: Final = 64 * KIB
WEBHOOK_RESPONSE_HEAD_BYTES_MAX: Final = 16 * KIB
WEBHOOK_RETRY_AFTER_MS_MAX: Final = 60 * 60 * 1000
DELIVERIES_MAX: Final = 1_000  # at the same time
DELIVERIES_PER_HOST_MAX: Final = 64  # at the same time to one host and port
LOOKUPS_MAX: Final = 24  # of names of targets, at the same time

# The journal.
SEGMENT_BYTES_DEFAULT: Final = 64 * MIB
SEGMENT_BYTES_MIN: Final = 4 * KIB
SEGMENT_BYTES_MAX: Final = 2**32 - 1  # the index stores byte positions in a segment as u32
FRAME_OVERHEAD_BYTES_MAX: Final = 64 * KIB
RESERVE_BYTES_DEFAULT: Final = 256 * MIB
OPEN_SEGMENTS_MAX: Final = 256
INDEX_CHUNK_FRAMES_MAX: Final = 4096
CHECKPOINT_BYTES_MAX: Final = 64 * GIB
CHECKPOINT_INTERVAL_MS: Final = 120_000
FINDINGS_MAX: Final = 1_000
SEGMENTS_SHOWN_MAX: Final = 100

# The broker.
GROUP_BYTES_MAX: Final = 16 * MIB
PARKED_COMMANDS_MAX: Final = 65_536
WAITERS_PER_STREAM_MAX: Final = 16_384
READ_FRAMES_MAX: Final = 1_000
READ_JOURNAL_BYTES_MAX: Final = 8 * MIB
READ_BYTES_DEFAULT: Final = 1 * MIB
SWEEP_INTERVAL_MS: Final = 1_000
GAP_HOLD_MS_MAX: Final = 1_000
GAPS_HELD_MAX: Final = 1_024
GAPS_HELD_BYTES_MAX: Final = 64 * MIB

# Lists.
TXN_PAGE_ROWS_MAX: Final = 5_000
TXN_PAGE_SEARCHED_MAX: Final = 10_000

assert SEGMENT_BYTES_DEFAULT >= 2 * (BODY_BYTES_MAX + FRAME_OVERHEAD_BYTES_MAX)
assert FRAME_OVERHEAD_BYTES_MAX >= 4 * BATCH_MESSAGES_MAX + CURSOR_BYTES_MAX + PATH_BYTES_MAX


class MachineLimits(Struct, frozen=True):
    """The limits that can be set for a deployment.

    Do not change a limit after the first start: a journal replay would have a different result.
    """

    receipts: int = RECEIPTS_DEFAULT
    streams: int = STREAMS_MAX
    producers_per_stream: int = PRODUCERS_PER_STREAM_MAX
    keys: int = IDEMPOTENCY_KEYS_MAX
    key_hours: int = IDEMPOTENCY_HOURS
    outcome_hours: int = OUTCOME_HOURS
    registry: int = REGISTRY_MAX
    chunks: int = TXN_CHUNKS_MAX
    txn_streams: int = TXN_STREAMS_MAX
    expiring_producers_per_stream: int = EXPIRING_PRODUCERS_PER_STREAM_MAX
    tombstones_per_stream: int = TOMBSTONES_PER_STREAM_MAX

    def __post_init__(self) -> None:
        if min(msgspec.structs.astuple(self)) < 1:
            raise ValueError("every limit must be at least 1")
