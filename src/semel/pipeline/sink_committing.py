"""Steps committed as the versions of a sink: for engines whose tasks stage by themselves.

A producer may have five transactions staged, a sink has no such limit. The sink of a processor is
called `<graph>/<processor>`, and its versions simply count its commits: whether a step was done
is told by the positions the commit moves, never by its version. So a step that is done in two
commits, a record of the trace, and a group that was set back by hand need no rules of their own.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from semel.client import sink_calls
from semel.client.client import Client
from semel.client.commit_calls import KnownStreams, Parts
from semel.client.errors import AppBound, Refused
from semel.client.flows import Flow, impatient
from semel.client.sink_calls import SinkInfo, Version
from semel.client.site_calls import register_producer
from semel.client.sync_driver import Stop
from semel.client.txn_values import CommitResult
from semel.pipeline.committing import Appends, Moving, Record
from semel.pipeline.delivery import Step

T = TypeVar("T")


class SinkCommitter:
    """Commits the steps of one processor. `version` is that of the next commit.

    To begin gives the sink to this instance: an older one is refused from then on, and what it has
    staged is dropped by the next commit. The producer of the same name is registered anew as well,
    which tells instances apart and refuses one that runs on the other engine.
    """

    def __init__(self, client: Client, name: str, stop: Stop) -> None:
        self.producer_id = name
        self.epoch = 0
        self.version = 0
        self._client = client
        self._stop = stop
        self._known = KnownStreams(replace(client.site, retries=None))

    def begin(self) -> None:
        """Fence off an older instance."""
        found = self._run(register_producer(self._client.site, self.producer_id))
        self.epoch = found.producer_epoch
        info = self._info()
        if info is None:
            # The first commit makes the sink, and says whose it is. It holds nothing.
            try:
                self.version = 0
                self._commit(None, Parts())
            except AppBound:
                info = self._info()  # another instance was quicker
        if info is not None:
            last = info.last_version
            self._run(sink_calls.rebind(self._client.site, self.producer_id, self._owner, last))
            self.version = last + 1

    def commit(
        self,
        step: Step | None,
        appends: Appends,
        moves: Moving,
        *,
        transactions: Sequence[str] = (),
        record: Record | None = None,
    ) -> CommitResult:
        """Commit; the appends are few, as what is large is staged."""
        small: dict[str, Sequence[Any]] = dict(appends)
        if record is not None:
            small[record[0]] = [record[1]]
        return self._commit(step, Parts(small, moves, transactions=transactions))

    def _commit(self, step: Step | None, parts: Parts) -> CommitResult:
        hash = None if step is None else step.hash
        version = Version(self.producer_id, self._owner, self.version, hash)
        flow = sink_calls.commit(self._known, version, parts)
        result = self._run(flow)
        self.version += 1
        return result

    @property
    def _owner(self) -> str:
        return f"{self.producer_id} instance {self.epoch}"

    def _info(self) -> SinkInfo | None:
        try:
            return self._run(sink_calls.show(self._client.site, self.producer_id))
        except Refused as error:
            if error.code == "unknown_sink":
                return None
            raise

    def _run(self, flow: Flow[T]) -> T:
        return self._client.driver.run(impatient(flow, self._client.timeout), None, self._stop)
