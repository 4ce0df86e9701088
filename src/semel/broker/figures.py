"""Figures that show operators the condition of a running engine."""

from heapq import nlargest
from operator import itemgetter

from msgspec import Struct

from semel.broker.engine import Engine
from semel.journal.space import SegmentSpace
from semel.machine.state import Txn
from semel.model.commands import BY_TIMEOUT, COMMITTED, TXN_INLINE
from semel.model.limits import GROUPS_SHOWN_MAX
from semel.model.steps import STEP_ROWS, Steps


class WakeFigures(Struct):
    """Sizes of the subscriptions, and counters of their wakes since the start of the process."""

    subscriptions: int = 0
    pending: int = 0  # subscriptions with something to process
    leased: int = 0  # wakes that a worker or a receiver has
    failing: int = 0  # subscriptions whose last delivery has failed, without suspended ones
    suspended: int = 0
    oldest_age_ms: int = 0  # of the wakes in flight; 0 if there are none
    issued: int = 0
    expired: int = 0  # wakes that ended because of their lease
    delivered: int = 0  # deliveries that were answered by 2xx
    failed: int = 0  # other deliveries


class EngineFigures(Struct, frozen=True, kw_only=True):
    """Counters since the start of the process, and current sizes and ages."""

    streams: int  # including soft-deleted streams
    policies: int
    durable_bytes: int  # the durable watermark
    end_bytes: int  # the end of the journal
    sync_count: int
    checkpoint_count: int
    replayed_bytes: int
    is_full: bool
    producers: int  # excluding tombstones
    expiring_producers: int
    tombstones: int
    producers_share: float  # over all streams, the largest share of a limit on producers, 0 to 1
    txns_started: int
    txns_committed: int
    txns_aborted: int
    txns_timed_out: int
    txns_pending: int
    txns_prepared: int
    oldest_txn_age_ms: int  # of the pending transactions; 0 if there are none
    stable_lag: int  # over all streams, the largest distance from the stable offset to the tail
    stable_lag_age_ms: int  # of the oldest transaction that causes such a distance, or 0
    sinks: int
    topics: int
    groups: int  # with positions, members or a pinned step
    members: int  # of all groups
    shared_streams: int  # that members own, in all groups
    rebalances: int  # frames that changed the owners of streams
    expired_members: int
    # The groups with the largest lag, at most GROUPS_SHOWN_MAX. It is the distance from a position
    # to the stable offset, over all streams of the group.
    group_lags: list[tuple[str, int]]
    wakes: WakeFigures
    clock_ahead_ms: int  # how far the time of the newest frame is ahead of the clock, or 0
    # At the last survey, or None before the first one is complete; see `semel.journal.space`.
    segments: list[SegmentSpace] | None
    segments_age_seconds: float  # the time since that survey


class _TxnFigures(Struct):
    """What the pending transactions have in common. The ages are in milliseconds."""

    prepared: int = 0
    oldest_age_ms: int = 0
    stable_lag: int = 0
    stable_lag_age_ms: int = 0


def figure_steps(engine: Engine) -> Steps[EngineFigures]:
    """Return counters since the process started, and current sizes.

    The pending transactions are looked at in steps, because together they can have millions of
    streams. A transaction that begins or ends between two steps may be left out.
    """
    txns = yield from _txn_steps(engine)
    producers_share = yield from _producer_steps(engine)
    lags = yield from _lag_steps(engine)
    shared_streams = yield from _shared_steps(engine)
    wakes = yield from _wake_steps(engine)
    broker = engine.broker
    state, ended = broker.state, broker.txns_ended
    return EngineFigures(
        streams=len(broker.durable_view.by_path),
        policies=len(broker.durable_view.policies),
        durable_bytes=broker.durable,
        end_bytes=broker.end,
        sync_count=engine.sync_count,
        checkpoint_count=engine.checkpoint_count,
        replayed_bytes=engine.replayed_bytes,
        is_full=broker.is_full,
        producers=state.producer_counts.live,
        expiring_producers=sum(state.producer_counts.expiring.values()),
        tombstones=state.producer_counts.tombstones,
        producers_share=producers_share,
        txns_started=broker.txns_begun,
        txns_committed=ended[COMMITTED],
        txns_aborted=ended.total() - ended[COMMITTED],
        txns_timed_out=ended[BY_TIMEOUT],
        txns_pending=len(state.by_txn),
        txns_prepared=txns.prepared,
        oldest_txn_age_ms=txns.oldest_age_ms,
        stable_lag=txns.stable_lag,
        stable_lag_age_ms=txns.stable_lag_age_ms,
        sinks=len(state.sinks),
        topics=len(broker.durable_view.topics),
        groups=len(state.groups.keys() | state.shares.keys() | state.snapshots.keys()),
        members=len(broker.memberships),
        shared_streams=shared_streams,
        rebalances=broker.memberships.rebalances,
        expired_members=broker.memberships.expired,
        group_lags=nlargest(GROUPS_SHOWN_MAX, lags.items(), key=itemgetter(1)),
        wakes=wakes,
        clock_ahead_ms=max(0, state.time_ms - engine.clock.now_ms()),
        segments=engine.space.segments,
        segments_age_seconds=engine.space.age_seconds,
    )


def _txn_steps(engine: Engine) -> Steps[_TxnFigures]:
    by_txn, figures = engine.broker.state.by_txn, _TxnFigures()
    unpaused_rows = 0
    for number in list(by_txn):
        txn = by_txn.get(number)
        if txn is None:
            continue  # it ended between two steps
        _add_txn(engine, txn, figures)
        unpaused_rows += 1 + len(txn.streams)
        if unpaused_rows > STEP_ROWS:
            unpaused_rows = 0
            yield
    return figures


def _producer_steps(engine: Engine) -> Steps[float]:
    """Return how much of a limit on producers the fullest stream uses, as a share from 0 to 1."""
    state = engine.broker.state
    lasting_max = state.limits.producers_per_stream
    expiring_max = state.limits.expiring_producers_per_stream
    share = 0.0
    for count, number in enumerate(list(state.by_number) if state.producer_counts.live else (), 1):
        stream = state.by_number.get(number)
        producers = None if stream is None else stream.producers
        if producers is not None:
            share = max(share, producers.lasting / lasting_max, producers.expiring / expiring_max)
        if count % STEP_ROWS == 0:
            yield
    return share


def _lag_steps(engine: Engine) -> Steps[dict[str, int]]:
    """Return how many offsets each group is behind, in its positions and its shared streams."""
    state = engine.broker.state
    lags: dict[str, int] = {}
    unpaused_rows = 0
    for number in list(state.by_number) if state.groups or state.shares else ():
        stream = state.by_number.get(number)
        if stream is not None and (stream.positions or stream.sharing):
            end, head = stream.tail.stable, stream.tail.head
            offsets = {group: row.offset for group, row in (stream.positions or {}).items()}
            for group in {*offsets, *(stream.sharing or ())}:
                lag = end - max(offsets.get(group, 0), head)
                lags[group] = lags.get(group, 0) + max(0, lag)
                unpaused_rows += 1
        unpaused_rows += 1
        if unpaused_rows > STEP_ROWS:
            unpaused_rows = 0
            yield
    return lags


def _shared_steps(engine: Engine) -> Steps[int]:
    """Return how many streams members own, in all groups."""
    state, count = engine.broker.state, 0
    for group in list(state.shares):
        share = state.shares.get(group)
        if share is not None and share.members:
            count += sum(row.owner is not None for row in share.streams.values())
            yield
    return count


def _wake_steps(engine: Engine) -> Steps[WakeFigures]:
    """Return the sizes of the subscriptions, and the counters of their wakes."""
    by_id, wakes = engine.broker.state.subscriptions.by_id, engine.broker.wakes
    figures, now_ms = WakeFigures(subscriptions=len(by_id)), engine.clock.now_ms()
    for count, name in enumerate(list(by_id), 1):
        subscription = by_id.get(name)
        if subscription is not None:
            wake = subscription.wake
            figures.pending += bool(subscription.pending)
            figures.suspended += wake.is_suspended
            figures.failing += bool(wake.attempts) and not wake.is_suspended
            if wake.wake_id:
                figures.oldest_age_ms = max(figures.oldest_age_ms, now_ms - wake.issued_ms)
        if count % STEP_ROWS == 0:
            yield
    figures.leased, figures.issued, figures.expired = wakes.leased, wakes.issued, wakes.expired
    figures.delivered, figures.failed = wakes.delivered, wakes.failed
    return figures


def _add_txn(engine: Engine, txn: Txn, figures: _TxnFigures) -> None:
    state, now_ms = engine.broker.state, engine.clock.now_ms()
    age_ms = now_ms - engine.broker.deadlines.dates(txn, now_ms).begun_ms
    figures.prepared += txn.row.is_prepared
    figures.oldest_age_ms = max(figures.oldest_age_ms, age_ms)
    if txn.row.kind != TXN_INLINE:
        return
    # The streams whose stable offset this transaction holds back.
    held = [number for number, extent in txn.streams.items() if extent.first >= 0]
    for number in held:
        tail = state.by_number[number].tail
        figures.stable_lag = max(figures.stable_lag, tail.tail - tail.stable)
    if held:
        figures.stable_lag_age_ms = max(figures.stable_lag_age_ms, age_ms)
