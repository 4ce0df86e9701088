"""The dependency graph of a recorded history, and its cycles.

A node is an event in time. An edge leads from an earlier event to a later event. A cycle proves
that a guarantee was violated, because no event can come before itself. There are these nodes:

- A staged transaction or a one-shot commit is one node, which gives all messages their offsets.
- An inline transaction has a node for each append and a node for the commit. The append gives
  messages their offsets. The commit makes the messages visible.
- Each read is a node, because reads of several streams are not a snapshot.
- A cut is the state of a stream in which exactly the first n messages are visible. There is one cut
  for each n at which a read ended. Edges lead from commits to cuts, and from cuts to reads.

An edge leads from event A to event B for one of these reasons:

- ww: A stored a message, and B stored the next message in the same stream.
- wr: A made a message visible (at read_uncommitted: stored it), and the read B returned it.
- rw: The read A reached the stream's end. Then B made the next message visible (or stored it).
- then: One client did A and then B, in one transaction or as one reader.

A committed message stays invisible while an older inline transaction is open. Therefore a read that
did not return the message can be before or after its commit, so no edge connects read and commit.
However, the read is certainly before the next cut, so an `rw` edge leads from the read to that cut.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

from semel.testing.txn.facts import Anomaly, HistoryFacts, Sent, name_of
from semel.testing.txn.history import TransactionAppend, TransactionRead

WW: Final = "ww"
WR: Final = "wr"
RW: Final = "rw"
THEN: Final = "then"


class Edge(NamedTuple):
    """An edge from one node to a later node.

    `value` is the message to which the edge refers, if any. Only an edge between two writes (`ww`)
    refers to a second message: `later` is stored after `value`.
    """

    source: int
    target: int
    kind: str
    stream: str = ""
    value: Any = None
    later: Any = None


class Dependencies:
    """The nodes and edges of the graph.

    Nodes are numbered from 0, in this order: the commits of all transactions, the appends and reads
    in all transactions, the reads outside transactions, and the cuts (states of a stream).
    """

    def __init__(self, facts: HistoryFacts) -> None:
        self._facts = facts
        transactions = facts.history.transactions
        counts = (len(transaction.steps) for transaction in transactions)
        # `_steps` has the node of each transaction's first step. `_reads` is the node of the first
        # read.
        *self._steps, self._reads = accumulate(counts, initial=len(transactions))
        self._first_cut = self._reads + len(facts.history.reads)
        self._cut_ends = _cut_ends(facts)
        counts = (len(ends) for ends in self._cut_ends.values())
        # `_cuts` maps each stream to the node of its first cut.
        *cuts, self.count = accumulate(counts, initial=self._first_cut)
        self._cuts = dict(zip(self._cut_ends, cuts, strict=True))

    def edges(self) -> Iterator[Edge]:
        """Yield all edges of the dependency graph. Every call yields the same edges."""
        yield from self._in_transactions()
        yield from self._of_readers()
        yield from self._between_messages()
        for stream in self._cut_ends:
            yield from self._to_cuts(stream)
        for node, read in self._all_reads():
            yield from self._around(node, read)

    def is_cut(self, node: int) -> bool:
        """Return True if the node is a cut. A cut is a state of a stream, not an operation."""
        return node >= self._first_cut

    def name(self, node: int) -> str:
        """Describe a node for an anomaly's text. The node must not be a cut (a stream's state)."""
        if node >= self._reads:
            return _name_of_read(self._facts.history.reads[node - self._reads])
        number = self._number_of(node)
        transaction = self._facts.history.transactions[number]
        if node == number:
            return f"the commit of {name_of(transaction)}"
        step = transaction.steps[node - self._steps[number]]
        if isinstance(step, TransactionAppend):
            return f"an append of {name_of(transaction)} to {step.stream}"
        return _name_of_read(step)

    def transaction(self, node: int) -> str | None:
        """Return the id of the transaction to which a node belongs.

        Return None for a read outside all transactions, and for a cut (a state of a stream).
        """
        is_step = node < self._reads
        return self._facts.history.transactions[self._number_of(node)].id if is_step else None

    def _number_of(self, node: int) -> int:
        is_commit = node < len(self._steps)
        return node if is_commit else bisect_right(self._steps, node) - 1

    # ---- edges -----------------------------------------------------------------------------------

    def _in_transactions(self) -> Iterator[Edge]:
        for number, transaction in enumerate(self._facts.history.transactions):
            nodes = [
                node
                for node, step in enumerate(transaction.steps, self._steps[number])
                # Appends are nodes only in an inline transaction. In other transactions, the commit
                # gives messages their offsets.
                if transaction.is_inline or isinstance(step, TransactionRead)
            ]
            for before, after in pairwise([*nodes, number]):
                yield Edge(before, after, THEN)

    def _of_readers(self) -> Iterator[Edge]:
        last: dict[str, int] = {}
        for node, read in enumerate(self._facts.history.reads, self._reads):
            before = last.get(read.reader)
            if before is not None:
                yield Edge(before, node, THEN)
            last[read.reader] = node

    def _between_messages(self) -> Iterator[Edge]:
        for stream, log in self._facts.uncommitted.items():
            all_sent = ((value, self._facts.sender(stream, value)) for value in log)
            nodes = ((value, self._node_of(sent)) for value, sent in all_sent if sent is not None)
            for (value, before), (later, after) in pairwise(nodes):
                if before != after:
                    yield Edge(before, after, WW, stream, value, later)

    def _to_cuts(self, stream: str) -> Iterator[Edge]:
        first, log = self._cuts[stream], self._facts.committed[stream]
        for node, (start, end) in enumerate(pairwise([0, *self._cut_ends[stream]]), first):
            if node > first:
                yield Edge(node - 1, node, WR, stream)
            for value in log[start:end]:
                sent = self._facts.sender(stream, value)
                if sent is not None:
                    yield Edge(sent.number, node, WR, stream, value)

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
        after = bisect_right(ends, end)
        if end:
            yield Edge(self._cuts[read.stream] + after - 1, node, WR, read.stream)
        if read.is_up_to_date and after < len(ends):
            yield Edge(node, self._cuts[read.stream] + after, RW, read.stream, log[end])

    def _around_uncommitted(self, node: int, read: TransactionRead) -> Iterator[Edge]:
        log = self._facts.uncommitted.get(read.stream, ())
        end = min(read.end, len(log))
        last = self._facts.sender(read.stream, log[end - 1]) if end else None
        if last is not None:
            yield Edge(self._node_of(last), node, WR, read.stream, log[end - 1])
        is_followed = read.is_up_to_date and end < len(log)
        following = self._facts.sender(read.stream, log[end]) if is_followed else None
        if following is not None:
            yield Edge(node, self._node_of(following), RW, read.stream, log[end])

    def _node_of(self, sent: Sent) -> int:
        """Return the node that gave a message its offset.

        In an inline transaction, this node is the append. Otherwise it is the commit.
        """
        if sent.transaction.is_inline:
            return self._steps[sent.number] + sent.step
        return sent.number


def _name_of_read(read: TransactionRead) -> str:
    return f"a read of {read.stream} up to message {read.end} by {read.reader}"


def _cut_ends(facts: HistoryFacts) -> dict[str, list[int]]:
    ends_by_stream: dict[str, set[int]] = {}
    for read in facts.reads():
        end = min(read.end, len(facts.committed.get(read.stream, ())))
        if read.is_committed and end:
            ends_by_stream.setdefault(read.stream, set()).add(end)
    return {stream: sorted(ends) for stream, ends in ends_by_stream.items()}


# ---- cycles --------------------------------------------------------------------------------------


_TRIED_MAX: Final = 64

Graph = Sequence[Sequence[int]]  # for each node, the nodes to which its edges lead


def components(graph: Graph) -> Iterator[list[int]]:
    """Yield the strongly connected components that have at least two nodes.

    This is Tarjan's algorithm without recursion.
    """
    count = len(graph)
    order = [0] * count  # when each node was first visited, from 1; 0 if not yet visited
    low = [0] * count
    is_waiting = bytearray(count)
    waiting: list[int] = []
    clock = 0
    for root in range(count):
        path, rest = ([], []) if order[root] else ([root], [iter(graph[root])])
        while path:
            node = path[-1]
            if not order[node]:
                clock += 1
                order[node] = low[node] = clock
                waiting.append(node)
                is_waiting[node] = 1
            for child in rest[-1]:
                if not order[child]:
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
    """Remove the strongly connected component of `root` from `waiting`, and return the component.

    The component is `root` and all nodes after it in `waiting`. `is_waiting` is updated, too.
    """
    component: list[int] = []
    while not component or component[-1] != root:
        component.append(waiting.pop())
        is_waiting[component[-1]] = 0
    return component


def shortest_cycle(graph: Graph, component: Collection[int], starts_max: int) -> list[int]:
    """Return the shortest cycle through any of the first `starts_max` nodes of a component.

    There can be a shorter cycle through other nodes of the component.
    """
    cycles = (
        path_between(graph, child, node)
        for node in sorted(component)[:starts_max]
        for child in graph[node]
    )
    return min((cycle for cycle in cycles if cycle), key=len)


def path_between(graph: Graph, start: int, end: int) -> list[int]:
    """Return the nodes of a shortest path from `start` to `end`, including both.

    Return an empty list if there is no path.
    """
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


def graph_of(dependencies: Dependencies) -> tuple[Graph, int]:
    """Return the graph as one list of successors for each node, and the number of its edges."""
    graph: list[list[int]] = [[] for _ in range(dependencies.count)]
    count = 0
    for edge in dependencies.edges():
        graph[edge[0]].append(edge[1])
        count += 1
    return graph, count


def cycles(dependencies: Dependencies, graph: Graph) -> Iterator[Anomaly]:
    """Yield one anomaly for each strongly connected component. The anomaly shows one cycle.

    The anomaly's name says which edges were enough for a cycle: `ww` and `then` for G0, also `wr`
    for G1c, also one `rw` for G-single, all edges for G2. The first name that fits is used.
    """
    parts = list(components(graph))
    part_of = {node: number for number, part in enumerate(parts) for node in part}
    inner: list[list[Edge]] = [[] for _ in parts]
    for edge in dependencies.edges() if parts else ():
        number = part_of.get(edge.source)
        if number is not None and part_of.get(edge.target) == number:
            inner[number].append(edge)
    for edges in inner:
        name, cycle = next(named for named in _named_cycles(edges) if named[1])
        yield _anomaly(dependencies, name, cycle)


def _named_cycles(edges: Sequence[Edge]) -> Iterator[tuple[str, list[Edge]]]:
    yield "G0", _cycle([edge for edge in edges if edge.kind in {WW, THEN}])
    yield "G1c", _cycle([edge for edge in edges if edge.kind != RW])
    yield "G-single", _cycle_with_one_rw(edges)
    yield "G2", _cycle(edges)


def _cycle(edges: Sequence[Edge]) -> list[Edge]:
    """Return a short cycle of these edges, or an empty list if there is no cycle."""
    numbers, graph = _local(edges, edges)
    for component in components(graph):
        return _edges_of(edges, numbers, shortest_cycle(graph, component, _TRIED_MAX))
    return []


def _cycle_with_one_rw(edges: Sequence[Edge]) -> list[Edge]:
    """Return a short cycle with exactly one `rw` edge, or an empty list if none is found."""
    numbers, graph = _local(edges, [edge for edge in edges if edge.kind != RW])
    paths = [
        path_between(graph, numbers[edge.target], numbers[edge.source])
        for edge in [edge for edge in edges if edge.kind == RW][:_TRIED_MAX]
    ]
    return _edges_of(edges, numbers, min(filter(None, paths), key=len, default=[]))


def _local(edges: Sequence[Edge], used: Sequence[Edge]) -> tuple[dict[int, int], list[list[int]]]:
    """Number the nodes of `edges` from 0. Return the number of each node, and a graph.

    The graph uses these numbers. It has only the edges in `used`, which is a part of `edges`.
    """
    nodes = dict.fromkeys(node for edge in edges for node in (edge.source, edge.target))
    numbers = {node: number for number, node in enumerate(nodes)}
    graph: list[list[int]] = [[] for _ in numbers]
    for edge in used:
        graph[numbers[edge.source]].append(numbers[edge.target])
    return numbers, graph


def _edges_of(edges: Sequence[Edge], numbers: dict[int, int], cycle: Sequence[int]) -> list[Edge]:
    """Return the edges of a cycle. `cycle` contains the node numbers that `_local` assigned."""
    by_pair = {(numbers[edge.source], numbers[edge.target]): edge for edge in edges}
    return [by_pair[pair] for pair in pairwise([*cycle, *cycle[:1]])]


# ---- messages ------------------------------------------------------------------------------------


def _anomaly(dependencies: Dependencies, name: str, cycle: Sequence[Edge]) -> Anomaly:
    # The lowest node of a cycle is never a cut.
    start = min(range(len(cycle)), key=lambda number: cycle[number].source)
    edges = [*cycle[start:], *cycle[:start]]
    lines = enumerate(_lines(dependencies, edges), 1)
    ids = filter(None, (dependencies.transaction(edge.source) for edge in edges))
    text = "these facts form a cycle, so no order of the operations is possible:"
    text += "".join(f"\n  {number}. {line}" for number, line in lines)
    return Anomaly(name, text, tuple(dict.fromkeys(ids)))


def _lines(dependencies: Dependencies, edges: Sequence[Edge]) -> Iterator[str]:
    """Yield one sentence for each edge, or for each chain of edges that are joined by cuts."""
    into: Edge | None = None
    for edge in edges:
        into = into or edge
        if not dependencies.is_cut(edge.target):
            yield _sentence(dependencies, into, edge.target)
            into = None


def _sentence(dependencies: Dependencies, edge: Edge, target: int) -> str:
    source, other = dependencies.name(edge.source), dependencies.name(target)
    value = f"{edge.value!r} in {edge.stream}"
    text = {
        WW: f"{source} stored {value} before {other} stored {edge.later!r} there",
        WR: f"{source} stored {value}, and {other} saw this message",
        RW: f"{source} did not see {value}, but {other} saw or stored this message",
        THEN: f"{source} came before {other}",
    }[edge.kind]
    return f"{text} [{edge.kind}]"
