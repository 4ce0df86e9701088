"""The dependency graph of a recorded history: what must have happened before what.

Its nodes are points in time, not whole transactions, because that is what semel guarantees. A
staged transaction and a one-shot commit get their offsets in all streams from one commit: one node.
An inline one gets an offset with each append, and is visible with its commit: several nodes. Each
read is its own node: reads of several streams are not a snapshot. In a real execution every edge
leads from earlier to later, so a cycle proves that a guarantee was violated.

- ww: two messages are in this order in a stream.
- wr: a read has returned a message. At read_committed the commit came before it, else the append.
- rw: a read has not returned a message, and a later state of the stream has it.
- then: one client did this after that, in one transaction or as one reader.

Between the commits and the reads of a stream are its *cuts*, the numbers at which reads ended:
there the first n messages are visible. A commit need not make its messages visible at once, because
an older inline transaction may be open. So a read that lacks a message is before the next cut, and
not before the commit.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

from semel.testing.txn.facts import Anomaly, HistoryFacts, Sent, name_of
from semel.testing.txn.history import TransactionAppend, TransactionRead

WW: Final = "ww"
WR: Final = "wr"
RW: Final = "rw"
THEN: Final = "then"


class Edge(NamedTuple):
    """An edge from one node to a later one."""

    source: int
    target: int
    kind: str
    stream: str = ""
    value: Any = None
    later: Any = None


class Moments:
    """The nodes: commits first, by number of transaction; then steps, reads and cuts."""

    def __init__(self, facts: HistoryFacts) -> None:
        self._facts = facts
        transactions = facts.history.transactions
        self._steps: list[int] = []  # the first step's node, by transaction
        count = len(transactions)
        for transaction in transactions:
            self._steps.append(count)
            count += len(transaction.steps)
        self._reads = count
        count += len(facts.history.reads)
        self._cut_ends = _cut_ends(facts)
        self._cuts: dict[str, int] = {}  # the first cut's node, by stream
        for stream, ends in self._cut_ends.items():
            self._cuts[stream] = count
            count += len(ends)
        self.count = count

    def edges(self) -> Iterator[Edge]:
        """Yield all edges, the same ones on every call."""
        yield from self._in_transactions()
        yield from self._of_readers()
        yield from self._between_messages()
        for stream in self._cut_ends:
            yield from self._to_cuts(stream)
        for node, read in self._all_reads():
            yield from self._around(node, read)

    def is_cut(self, node: int) -> bool:
        """Return whether a node is a state of a stream, not an operation of a client."""
        return node >= self._reads + len(self._facts.history.reads)

    def told(self, node: int) -> str:
        """Return the name of a node for a message."""
        transactions = self._facts.history.transactions
        if node < len(transactions):
            return f"the decision of {name_of(transactions[node])}"
        if node >= self._reads:
            return _told_read(self._facts.history.reads[node - self._reads])
        number = bisect_right(self._steps, node) - 1
        step = transactions[number].steps[node - self._steps[number]]
        if isinstance(step, TransactionAppend):
            return f"an append of {name_of(transactions[number])} to {step.stream}"
        return _told_read(step)

    def transaction(self, node: int) -> str | None:
        """Return the id of the transaction a node belongs to."""
        if node >= self._reads:
            return None
        is_decision = node < len(self._facts.history.transactions)
        number = node if is_decision else bisect_right(self._steps, node) - 1
        return self._facts.history.transactions[number].id

    # ---- edges -----------------------------------------------------------------------------------

    def _in_transactions(self) -> Iterator[Edge]:
        for number, transaction in enumerate(self._facts.history.transactions):
            before = None
            for node, step in enumerate(transaction.steps, self._steps[number]):
                if isinstance(step, TransactionAppend) and not transaction.is_inline:
                    continue  # it gets its offset from the commit
                if before is not None:
                    yield Edge(before, node, THEN)
                before = node
            if before is not None:
                yield Edge(before, number, THEN)

    def _of_readers(self) -> Iterator[Edge]:
        last: dict[str, int] = {}
        for node, read in enumerate(self._facts.history.reads, self._reads):
            before = last.get(read.reader)
            if before is not None:
                yield Edge(before, node, THEN)
            last[read.reader] = node

    def _between_messages(self) -> Iterator[Edge]:
        sender, place = self._facts.sender, self._place
        for stream, log in self._facts.uncommitted.items():
            before: int | None = None
            value: Any = None
            for later in log:
                sent = sender(stream, later)
                if sent is None:
                    continue
                node = place(sent)
                if before is not None and before != node:
                    yield Edge(before, node, WW, stream, value, later)
                before, value = node, later

    def _to_cuts(self, stream: str) -> Iterator[Edge]:
        ends, first = self._cut_ends[stream], self._cuts[stream]
        log = self._facts.committed[stream]
        start = 0
        for index, end in enumerate(ends):
            if index:
                yield Edge(first + index - 1, first + index, WR, stream)
            for value in log[start:end]:
                sent = self._facts.sender(stream, value)
                if sent is not None:
                    yield Edge(sent.number, first + index, WR, stream, value)
            start = end

    def _all_reads(self) -> Iterator[tuple[int, TransactionRead]]:
        yield from enumerate(self._facts.history.reads, self._reads)
        for number, transaction in enumerate(self._facts.history.transactions):
            for node, step in enumerate(transaction.steps, self._steps[number]):
                if isinstance(step, TransactionRead):
                    yield node, step

    def _around(self, node: int, read: TransactionRead) -> Iterator[Edge]:
        if not read.is_committed:
            yield from self._around_uncommitted(node, read)
            return
        log = self._facts.committed.get(read.stream, ())
        end = min(read.end, len(log))
        ends = self._cut_ends.get(read.stream, [])
        behind = bisect_right(ends, end)
        if end:
            yield Edge(self._cuts[read.stream] + behind - 1, node, WR, read.stream)
        if read.is_up_to_date and behind < len(ends):
            yield Edge(node, self._cuts[read.stream] + behind, RW, read.stream, log[end])

    def _around_uncommitted(self, node: int, read: TransactionRead) -> Iterator[Edge]:
        log = self._facts.uncommitted.get(read.stream, ())
        end = min(read.end, len(log))
        last = self._facts.sender(read.stream, log[end - 1]) if end else None
        if last is not None:
            yield Edge(self._place(last), node, WR, read.stream, log[end - 1])
        if not read.is_up_to_date or end == len(log):
            return
        following = self._facts.sender(read.stream, log[end])
        if following is not None:
            yield Edge(node, self._place(following), RW, read.stream, log[end])

    def _place(self, sent: Sent) -> int:
        """Return the node at which a message got its offset."""
        if sent.transaction.is_inline:
            return self._steps[sent.number] + sent.step
        return sent.number


def _cut_ends(facts: HistoryFacts) -> dict[str, list[int]]:
    ends_by_stream: dict[str, set[int]] = {}
    for read in facts.reads():
        end = min(read.end, len(facts.committed.get(read.stream, ())))
        if read.is_committed and end:
            ends_by_stream.setdefault(read.stream, set()).add(end)
    return {stream: sorted(ends) for stream, ends in ends_by_stream.items()}


def _told_read(read: TransactionRead) -> str:
    return f"a read of {read.stream} up to number {read.end} by {read.reader}"


# ---- cycles --------------------------------------------------------------------------------------
# Cycles in the dependency graph of a history, named and told.


# ---- components ----------------------------------------------------------------------------------
# Cycles in a directed graph: the strongly connected components, and a short way around in one.


Graph = Sequence[Sequence[int]]  # the nodes that a node leads to


def components(graph: Graph) -> Iterator[list[int]]:
    """Return the components of two nodes and more, by Tarjan's algorithm, without recursion."""
    count = len(graph)
    order = [0] * count  # when a node was found, from 1; 0: not yet
    low = [0] * count
    is_waiting = bytearray(count)
    waiting: list[int] = []
    found = 0
    for root in range(count):
        if order[root]:
            continue
        path = [root]
        rest = [iter(graph[root])]
        found += 1
        order[root] = low[root] = found
        waiting.append(root)
        is_waiting[root] = 1
        while path:
            node = path[-1]
            for child in rest[-1]:
                if not order[child]:
                    found += 1
                    order[child] = low[child] = found
                    waiting.append(child)
                    is_waiting[child] = 1
                    path.append(child)
                    rest.append(iter(graph[child]))
                    break
                if is_waiting[child] and order[child] < low[node]:
                    low[node] = order[child]
            else:
                path.pop()
                rest.pop()
                if path and low[node] < low[path[-1]]:
                    low[path[-1]] = low[node]
                if low[node] == order[node]:
                    component = _taken(waiting, node, is_waiting)
                    if len(component) > 1:
                        yield component


def _taken(waiting: list[int], root: int, is_waiting: bytearray) -> list[int]:
    """Take a whole component off the nodes that wait for theirs."""
    component: list[int] = []
    while not component or component[-1] != root:
        component.append(waiting.pop())
        is_waiting[component[-1]] = 0
    return component


def shortest_cycle(graph: Graph, component: Collection[int], starts_max: int) -> list[int]:
    """Find a short cycle in a component: the shortest one through its first nodes."""
    cycles = (
        path_between(graph, child, node)
        for node in sorted(component)[:starts_max]
        for child in graph[node]
    )
    return min((cycle for cycle in cycles if cycle), key=len)


def path_between(graph: Graph, start: int, end: int) -> list[int]:
    """Find a shortest way from one node to another, both included; empty if there is none."""
    came_from = {start: start}
    queue = deque([start])
    while queue and end not in came_from:
        node = queue.popleft()
        for child in graph[node]:
            if child not in came_from:
                came_from[child] = node
                queue.append(child)
    if end not in came_from:
        return []
    path = [end]
    while path[-1] != start:
        path.append(came_from[path[-1]])
    return path[::-1]


# ---- txn cycles ----------------------------------------------------------------------------------


_TRIED_MAX: Final = 64


def graph_of(moments: Moments) -> tuple[Graph, int]:
    """Build the graph, and count its edges."""
    graph: list[list[int]] = [[] for _ in range(moments.count)]
    count = 0
    for edge in moments.edges():
        graph[edge[0]].append(edge[1])
        count += 1
    return graph, count


def cycles(moments: Moments, graph: Graph) -> Iterator[Anomaly]:
    """Name one cycle of each component: the one that needs the fewest kinds of edges."""
    found = list(components(graph))
    home = {node: number for number, component in enumerate(found) for node in component}
    inner: list[list[Edge]] = [[] for _ in found]
    for edge in moments.edges() if found else ():
        number = home.get(edge.source)
        if number is not None and home.get(edge.target) == number:
            inner[number].append(edge)
    for edges in inner:
        yield _named(moments, edges)


def _named(moments: Moments, edges: Sequence[Edge]) -> Anomaly:
    for name, kinds in (("G0", {WW, THEN}), ("G1c", {WW, WR, THEN})):
        cycle = _cycle([edge for edge in edges if edge.kind in kinds])
        if cycle is not None:
            return _told(moments, name, cycle)
    cycle = _cycle_with_one_rw(edges)
    if cycle is not None:
        return _told(moments, "G-single", cycle)
    cycle = _cycle(edges)
    assert cycle is not None
    return _told(moments, "G2", cycle)


def _cycle(edges: Sequence[Edge]) -> list[Edge] | None:
    numbers, graph = _local(edges)
    for component in components(graph):
        return _chosen(edges, numbers, shortest_cycle(graph, component, _TRIED_MAX))
    return None


def _cycle_with_one_rw(edges: Sequence[Edge]) -> list[Edge] | None:
    """Go around by one edge rw and, from its end to its beginning, by others."""
    numbers, graph = _local(edges, [edge for edge in edges if edge.kind != RW])
    found: list[list[int]] = []
    for edge in [edge for edge in edges if edge.kind == RW][:_TRIED_MAX]:
        path = path_between(graph, numbers[edge.target], numbers[edge.source])
        if path:
            found.append(path)
    return _chosen(edges, numbers, min(found, key=len)) if found else None


def _local(
    edges: Sequence[Edge], used: Sequence[Edge] | None = None
) -> tuple[dict[int, int], list[list[int]]]:
    """Make a small graph of some edges, with nodes counted from 0."""
    numbers: dict[int, int] = {}
    for edge in edges:
        numbers.setdefault(edge.source, len(numbers))
        numbers.setdefault(edge.target, len(numbers))
    graph: list[list[int]] = [[] for _ in numbers]
    for edge in edges if used is None else used:
        graph[numbers[edge.source]].append(numbers[edge.target])
    return numbers, graph


def _chosen(edges: Sequence[Edge], numbers: dict[int, int], cycle: Sequence[int]) -> list[Edge]:
    """Find the edges between the nodes of a cycle."""
    by_pair = {(numbers[edge.source], numbers[edge.target]): edge for edge in edges}
    return [by_pair[pair] for pair in zip(cycle, [*cycle[1:], cycle[0]], strict=True)]


# ---- in words ------------------------------------------------------------------------------------


def _told(moments: Moments, name: str, cycle: Sequence[Edge]) -> Anomaly:
    start = min(range(len(cycle)), key=lambda number: cycle[number].source)  # never a cut
    edges = [*cycle[start:], *cycle[:start]]
    lines = [f"\n  {number}. {line}" for number, line in enumerate(_lines(moments, edges), 1)]
    involved = dict.fromkeys(filter(None, (moments.transaction(edge.source) for edge in edges)))
    text = "each came before the next, and the last before the first:" + "".join(lines)
    return Anomaly(name, text, tuple(involved))


def _lines(moments: Moments, edges: Sequence[Edge]) -> Iterator[str]:
    """Tell a cycle edge by edge; a way through the cuts of a stream is one sentence."""
    begun: Edge | None = None
    for edge in edges:
        into = begun or edge
        if moments.is_cut(edge.target):
            begun = into
            continue
        begun = None
        yield _sentence(moments, into, edge.target)


def _sentence(moments: Moments, edge: Edge, target: int) -> str:
    one, other = moments.told(edge.source), moments.told(target)
    match edge.kind:
        case "ww":
            what = f"put {edge.value!r} into {edge.stream}, and behind it {edge.later!r} came by"
        case "wr":
            what = f"brought {edge.value!r} into {edge.stream}, which was seen by"
        case "rw":
            what = f"did not see {edge.value!r} in {edge.stream}; it was there for"
        case _:
            what = "was over before"
    return f"{one} {what} {other} [{edge.kind}]"
