"""The commands of members that share the work of a group.

Members join with streams, topics or patterns, release what they are asked for, leave, or just
disappear. Their commits are those of the transactions' workload: `signed` adds the member and the
epoch, mostly those of the owner, sometimes those of a member or an epoch of before.
"""

from collections import deque
from random import Random

from msgspec.structs import replace

from semel.model import commands as ask
from semel.model import group_commands as group_ask
from semel.model.commands import EngineCommand, PositionMove
from semel.model.group_commands import EARLIEST, LATEST
from tests.sim.reference import Model
from tests.sim.reference_groups import Row

# The first is the group of most transactions.
GROUPS = ("g0", "g0", "g0", "g1", "h/1")
PATTERNS = ("**", "s/*", "s/**", "*", "**/s", "s/**/b", "t", "none/*")
TIMEOUTS_MS = (1_000, 10_000, 30_000, 60_000)
MEMBERS = 4  # as many members join a group, and then rarely more
SHARE = 0.2  # of the commands, in runs with groups
HEARTBEATS = 0.2  # of the steps in which clients send commands, in runs with groups
SIGNED = 0.85  # of the moves in streams that somebody owns


class GroupWorkload:
    """A seeded generator of commands on groups; with `is_off`, of none."""

    def __init__(self, rng: Random, paths: list[str], *, is_off: bool) -> None:
        self._rng, self._paths, self.is_off = rng, list(paths), is_off
        self._count = 0
        self._is_wide = rng.random() < 0.5  # most members read everything
        # What members had once: group, path, member and epoch.
        self._past: deque[tuple[str, str, str, int]] = deque(maxlen=40)
        self._gone: deque[tuple[str, str]] = deque(maxlen=20)  # group and member

    def draw(self, model: Model, now_ms: int) -> EngineCommand | None:
        """Return a command on a group, or None for a command of another kind."""
        rng = self._rng
        if self.is_off or rng.random() >= SHARE:
            return None
        self._count += 1
        group = rng.choice(GROUPS)
        members = len(model.groups.find(group).members)
        if members == 0 or rng.random() < 0.3 / (1 + max(0, members - MEMBERS + 2)):
            return self._join(model, group, now_ms)
        kinds = ["release", "leave", "expire", "take", "rebalance", "delete", "move"]
        kind = rng.choices(kinds, [30, 8, 3, 3, 5, 2, 40])[0]
        return self._on(kind, model, group, now_ms)

    def _on(self, kind: str, model: Model, group: str, now_ms: int) -> EngineCommand:
        rng, member = self._rng, self._member(model, group)
        match kind:
            case "release":
                return self._release(model, now_ms, group)
            case "leave":
                if rng.random() < 0.5:
                    member = self._holder(model, group) or member
                self._gone.append((group, member))
                return group_ask.LeaveGroup(now_ms, group, member)
            case "expire":
                known = model.groups.find(group).members.get(member)
                timeout_ms = 1_000 if known is None else known.session_timeout_ms
                elapsed_ms = rng.choice([0, timeout_ms - 1])  # the broker does the rest
                return group_ask.ExpireMember(now_ms, group, member, elapsed_ms)
            case "take":
                return group_ask.TakeStream(now_ms, group, rng.choice(self._paths), 0)
            case "rebalance":
                group = rng.choice([*GROUPS, "nobody"])
                return group_ask.RebalanceGroup(now_ms, group)
            case "delete":
                return group_ask.DeleteGroup(now_ms, rng.choice([group, "g2", "nobody"]))
            case _:
                return self._move(model, now_ms, group)

    def heartbeats(self, model: Model) -> list[tuple[str, str]]:
        """Return the members that send a heartbeat now, sometimes those that have left."""
        if self.is_off or self._rng.random() > HEARTBEATS:
            return []
        rng, group = self._rng, self._rng.choice(GROUPS)
        names = [*model.groups.find(group).members]
        if names and rng.random() < 0.6:  # some are alive, others are not heard for a long time
            return [(group, name) for name in rng.sample(names, rng.randint(1, len(names)))]
        return [(group, self._member(model, group))]

    def suspects(self) -> tuple[str, ...] | None:
        """Return the streams of which a member says that it processes the next message alone."""
        rng = self._rng
        return rng.choice([None, None, (), tuple(rng.sample(self._paths, 2))])

    def late(self, model: Model, now_ms: int) -> EngineCommand | None:
        """Sometimes end a member or take a stream, as the broker's sweep does."""
        rng = self._rng
        if self.is_off or rng.random() > 0.03:
            return None
        group = rng.choice(GROUPS)
        known = model.groups.find(group)
        paths = {s.number: path for path, s in model.streams.items()}
        asked = [paths[n] for n, row in known.rows.items() if row.is_revoking]
        if asked and rng.random() < 0.5:
            return group_ask.TakeStream(now_ms, group, rng.choice(asked), rng.choice([999, 60_000]))
        member = self._member(model, group)
        self._gone.append((group, member))
        return group_ask.ExpireMember(now_ms, group, member, 60_000)

    # ---- members ---------------------------------------------------------------------------------

    def _join(self, model: Model, group: str, now_ms: int) -> EngineCommand:
        rng = self._rng
        streams: tuple[str, ...] = ()
        patterns: tuple[str, ...] = ()
        live = [path for path, stream in model.streams.items() if not stream.is_deleted]
        luck = rng.random()
        if self._is_wide and luck < 0.7:
            patterns = ("**",)
        elif luck < 0.5 or not live:
            patterns = tuple(rng.sample(PATTERNS, rng.choice([1, 1, 2])))
        else:
            streams = tuple(rng.sample(live, min(len(live), rng.randint(1, 4))))
            if rng.random() < 0.1:
                streams = (*streams, rng.choice(self._paths))
        instance = rng.choice([None, None, None, "one", "two"])
        return group_ask.JoinGroup(
            now_ms,
            group,
            f"m{self._count}",
            tuple(dict.fromkeys(streams)),
            (),
            patterns,
            rng.choice(TIMEOUTS_MS),
            rng.choice([None, None, 1_000, 40_000]),
            instance,
            rng.choice([EARLIEST, EARLIEST, LATEST]),
        )

    def _member(self, model: Model, group: str) -> str:
        """Choose a member, sometimes one that has left."""
        rng, members = self._rng, list(model.groups.find(group).members)
        gone = [name for where, name in self._gone if where == group]
        if gone and rng.random() < 0.1:
            return rng.choice(gone)
        return rng.choice(members) if members else "nobody"

    def _holder(self, model: Model, group: str) -> str | None:
        """Return the owner of a stream whose position is held, if there is one."""
        rows = model.groups.find(group).rows.items()
        return next((row.owner for n, row in rows if model.groups.is_held(group, n)), None)

    def _release(self, model: Model, now_ms: int, group: str) -> EngineCommand:
        """Release what a member is asked for, or sometimes anything."""
        rng, known = self._rng, model.groups.find(group)
        paths = {s.number: path for path, s in model.streams.items()}
        asked = [(row.owner, n) for n, row in known.rows.items() if row.is_revoking and row.owner]
        if not asked or rng.random() < 0.15:
            owned = [(row.owner, n) for n, row in known.rows.items() if row.owner]
            asked = owned if owned and rng.random() < 0.5 else []
        if not asked:
            member, streams = self._member(model, group), [rng.choice(self._paths)]
        else:
            member = rng.choice(asked)[0]
            streams = [paths[n] for owner, n in asked if owner == member]
        if rng.random() < 0.1:
            streams.append(rng.choice(self._paths))
        return group_ask.ReleaseStreams(now_ms, group, member, tuple(dict.fromkeys(streams)))

    # ---- moves -----------------------------------------------------------------------------------

    def _move(self, model: Model, now_ms: int, group: str) -> EngineCommand:
        """Commit a position outside transactions, as the owner of a stream or as another."""
        rng, rows = self._rng, model.groups.find(group).rows
        paths = {s.number: path for path, s in model.streams.items() if not s.is_deleted}
        owned = [number for number, row in rows.items() if row.owner and number in paths]
        if not owned:
            return ask.SetPositions(now_ms, (PositionMove(group, rng.choice(self._paths), 0),))
        path = paths[rng.choice(owned)]
        stored, stream = model.txns.positions.at(group, path), model.streams[path]
        to = rng.randint(min(stored.offset, stream.tail), stream.tail)
        move = self._sign(model, PositionMove(group, path, to, stored.offset))
        return ask.SetPositions(now_ms, (move,), by_operator=rng.random() < 0.05)

    def signed(self, model: Model, command: EngineCommand) -> EngineCommand:
        """Return a command whose moves have a member, where the group has some."""
        if self.is_off or not isinstance(command, ask.AddPositions | ask.Commit | ask.SetPositions):
            return command
        moves = tuple(self._sign(model, move) for move in command.positions)
        command = replace(command, positions=moves)
        if isinstance(command, ask.SetPositions) and self._rng.random() < 0.1:
            command = replace(command, by_operator=True)
        return command

    def _sign(self, model: Model, move: PositionMove) -> PositionMove:
        """Add the member and the epoch: those of the owner, or others."""
        rng, stream = self._rng, model.streams.get(move.path)
        if move.member is not None or stream is None:
            return move
        row = model.groups.find(move.group).rows.get(stream.number, Row())
        luck = rng.random()
        if row.owner is None:
            if luck < 0.03 and row.epoch:
                return replace(move, member="nobody", member_epoch=row.epoch)
            return move
        self._past.append((move.group, move.path, row.owner, row.epoch))
        if luck < SIGNED:
            return replace(move, member=row.owner, member_epoch=row.epoch)
        past = [each for each in self._past if each[:2] == (move.group, move.path)]
        _, _, member, epoch = rng.choice(past)
        if luck < 0.96:  # an owner of before, or an epoch that nobody had
            epoch += rng.choice([0, 0, 0, -1, 1])
            return replace(move, member=member, member_epoch=max(0, epoch))
        return move
