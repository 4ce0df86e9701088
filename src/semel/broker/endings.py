"""Ends what has timed out: streams, topics, transactions, producers, members of groups, and wakes.

The broker does this before a command that something overdue would affect, and in every sweep.
"""

from semel.broker.lookups import affected_members, affected_paths, affected_txns
from semel.broker.memberships import Memberships
from semel.broker.producer_timers import ProducerLives
from semel.broker.timers import Deadlines, Expiry, can_expire
from semel.broker.wakes import Execute, Wakes
from semel.machine.rows import is_partition
from semel.machine.state import State, Stream, Txn
from semel.model.commands import EngineCommand, Expire, ExpireTxn
from semel.model.outcomes import Outcome, Refusal


class Endings:
    """Finds what is due, and executes the commands that end it."""

    def __init__(
        self,
        state: State,
        execute: Execute,
        *,
        deadlines: Deadlines,
        expiry: Expiry,
        lives: ProducerLives,
        memberships: Memberships,
        wakes: Wakes,
    ) -> None:
        self._state = state
        self._execute = execute
        self._deadlines = deadlines
        self._expiry = expiry
        self._lives = lives
        self._memberships = memberships
        self._wakes = wakes
        wakes.expire_stream = self.expire_stream

    def prepare(self, command: EngineCommand) -> bool:
        """End overdue members, transactions and wakes that a command affects.

        Then issue the wake that it needs. Return False if something of it has to wait.
        """
        is_ended = self.expire_members(command) and self.end_txns(command)
        if not is_ended or not self._state.subscriptions.by_id:
            return is_ended
        return self._wakes.end_expired(command) and self._wakes.issue_for(command)

    # ---- streams and topics --------------------------------------------------------------------

    def expire_streams(self, command: EngineCommand) -> bool:
        """Delete expired streams that a command affects. Return False if a deletion must wait."""
        return all(self.expire_stream(path, command.now_ms) for path in affected_paths(command))

    def expire_stream(self, path: str, now_ms: int) -> bool:
        """Delete a stream or topic if it has expired. Return False if the deletion has to wait.

        A partition expires with its topic.
        """
        stream = self._state.by_path.get(path)
        if stream is not None and is_partition(stream.row):
            stream = self._state.by_number.get(stream.row.topic)
        return stream is None or self._expire(stream, now_ms)

    def _expire(self, stream: Stream, now_ms: int) -> bool:
        if (
            not can_expire(stream.row)
            or stream.tail.is_deleted
            or not self._expiry.has_expired(stream, now_ms)
        ):
            return True
        elapsed_ms = self._expiry.elapsed_ms(stream.row.number)
        return self._execute(Expire(stream.row.path, now_ms, elapsed_ms))

    # ---- transactions --------------------------------------------------------------------------

    def end_txns(self, command: EngineCommand) -> bool:
        """Abort overdue transactions that a command affects. Return False if that has to wait."""
        txns = affected_txns(self._state, command)
        return all(self.end_txn(txn, command.now_ms) for txn in txns)

    def end_txn(self, txn: Txn, now_ms: int) -> bool:
        """Abort a transaction if its timeout has passed. Return False if the abort has to wait."""
        is_pending = self._state.by_txn.get(txn.row.number) is txn
        if not is_pending or not self._deadlines.is_due(txn):
            return True
        elapsed_ms = self._deadlines.elapsed_ms(txn)
        return self._execute(ExpireTxn(now_ms, txn.row.id, txn.row.epoch, elapsed_ms))

    # ---- members of groups ---------------------------------------------------------------------

    def expire_members(self, command: EngineCommand) -> bool:
        """Remove expired members that a command affects. Return False if that has to wait."""
        if not len(self._memberships):
            return True
        now_ms = command.now_ms
        return all(self.expire_member(*each, now_ms) for each in affected_members(command))

    def expire_member(self, group: str, member: str, now_ms: int) -> bool:
        """Remove a member if its session has timed out. Return False if that has to wait.

        So a late heartbeat or commit does not renew a session that has already timed out.
        """
        if not self._memberships.has_expired(group, member):
            return True
        return self._execute(self._memberships.expire_command(group, member, now_ms))

    def hear(
        self, group: str, member: str, now_ms: int, suspects: tuple[str, ...] | None = None
    ) -> None:
        """Record a heartbeat. A member whose session has timed out is removed instead."""
        self.expire_member(group, member, now_ms)
        self._memberships.hear(group, member, suspects)

    def note_heard(self, command: EngineCommand, outcome: Outcome) -> None:
        """Renew the sessions of the members, and the leases, for which a command was accepted."""
        if self._state.subscriptions.by_id:
            self._wakes.note_outcome(command, outcome)
        if len(self._memberships) and not isinstance(outcome, Refusal):
            for group, member in affected_members(command):
                self._memberships.hear(group, member)

    # ---- all -----------------------------------------------------------------------------------

    def sweep(self, now_ms: int, count_max: int) -> int:
        """End at most `count_max` streams, topics, transactions, producers and wakes that are due.

        At most as many of each kind. Return their number. Members are not among them, because each
        of their ends can take long.
        """
        streams = self._expiry.due(now_ms, count_max)
        txns = self._deadlines.due(count_max)
        count = sum(self._expire(stream, now_ms) for stream in streams)
        count += sum(self.end_txn(txn, now_ms) for txn in txns)
        count += sum(map(self._execute, self._wakes.due(now_ms, count_max)))
        return count + sum(map(self._execute, self._lives.end_commands(now_ms, count_max)))
