"""The commands about pipeline graphs: `semel graph`, `semel run` and `semel trace`."""

import logging
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Self

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from semel.cli.options import Name, Number, error_report, remote
from semel.cli.output import (
    EXIT_REFUSED,
    EXIT_STOPPED,
    EXIT_USAGE,
    ChangingCommand,
    CommandRefused,
    json_line,
    printable,
    text_table,
    write_stdout,
)
from semel.cli.server_choice import ChooseServer, server_options
from semel.client.addresses import URL_DEFAULT
from semel.client.errors import ClientError, StreamNotFound
from semel.client.sync.client import Client
from semel.pipeline.executor import ENGINES, LOG, Gauge
from semel.pipeline.graph.graph import Graph
from semel.pipeline.runner import Runner
from semel.pipeline.trace import TracedStep, trace_of
from semel.pipeline.values import GraphError

# ---- graph ---------------------------------------------------------------------------------------

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("graph")
@click.argument("file", type=_FILE)
@click.option("--graph", "name", help="Id of the graph; required if FILE has several graphs.")
@click.option(
    "--svg",
    "svg_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the graph as SVG in this file.",
)
@click.option("--json", "is_json", is_flag=True, help="Print JSON, for programs.")
def graph_command(*, file: Path, name: str | None, svg_file: Path | None, is_json: bool) -> None:
    """Validate the graph in FILE, and draw it as text or SVG.

    Does not run the graph, and does not contact a server.
    """
    graph = load_graph(file, name)
    try:
        graph.check()
    except GraphError as error:
        raise refuse_graph(error) from error
    if svg_file is not None:
        try:
            svg_file.write_text(graph.svg(), encoding="utf-8")
        except OSError as error:
            raise CommandRefused(f"--svg: {error}") from error
    if is_json:
        write_stdout(json_line(graph.to_dict()))
    elif svg_file is None:
        write_stdout(graph.draw().encode())


def load_graph(file: Path, name: str | None = None) -> Graph:
    """Import a file as a module and return its graph.

    `name` is the id of the graph. It is required if the file has several graphs.

    Raises CommandRefused if the file has no such graph, or if the import fails.
    """
    graphs = _graphs(file, _module(file))
    listed = ", ".join(graphs) or "no graph"
    if name is not None:
        if name not in graphs:
            raise CommandRefused(f"{file} has no graph {name!r}; the file has {listed}")
        return graphs[name]
    if len(graphs) != 1:
        advice = "select one with --graph" if graphs else "add the line `graph = Graph('orders')`"
        raise CommandRefused(f"{file} has {listed}; {advice}")
    return next(iter(graphs.values()))


def refuse_graph(error: GraphError) -> CommandRefused:
    """Print the errors of a graph, one per line. Return the exception for the caller to raise."""
    for complaint in error.complaints:
        click.echo(f"  - {printable(complaint)}", err=True)
    return CommandRefused(str(error).partition(":\n")[0], EXIT_USAGE)


def _graphs(file: Path, module: ModuleType) -> dict[str, Graph]:
    graphs: dict[str, Graph] = {}
    for value in vars(module).values():
        if isinstance(value, Graph) and graphs.setdefault(value.id, value) is not value:
            raise CommandRefused(
                f"{file} has two graphs with the id {value.id!r}; each graph needs its own id"
            )
    return graphs


def _module(file: Path) -> ModuleType:
    """Import a file as a module. The file can import other modules from its own directory."""
    name = file.stem
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise CommandRefused(f"{file} is not a Python file; its name must end in .py")
    module = module_from_spec(spec)
    sys.path.insert(0, str(file.resolve().parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except GraphError as error:
        raise refuse_graph(error) from error
    except (Exception, SystemExit) as error:
        raise CommandRefused(f"{file} failed: {type(error).__name__}: {error}") from error
    return module


# ---- run -----------------------------------------------------------------------------------------


@click.command("run", cls=ChangingCommand)
@click.argument("file", type=_FILE)
@click.option("--graph", "name", help="Id of the graph; required if FILE has several graphs.")
@server_options(
    "Address of the server. The default is that of --context, the graph's url, that of the current"
    f" context, or {URL_DEFAULT}."
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    help="Where the graph's functions run. The default is `spark` if the graph needs Spark or"
    " --master is set. Otherwise it is `local` (this process).",
)
@click.option("--master", help="Spark master, such as local[*] or spark://host:7077.")
@click.option("--checkpoints", help="Directory or URI for Spark checkpoints.")
@click.option(
    "--available-now", "is_draining", is_flag=True, help="Process the stored messages, then end."
)
@click.option("--json", "is_json", is_flag=True, help="Print progress as JSON, for programs.")
def run_command(
    *,
    file: Path,
    name: str | None,
    choose: ChooseServer,
    engine: str | None,
    master: str | None,
    checkpoints: str | None,
    is_draining: bool,
    is_json: bool,
) -> int:
    """Run the pipeline graph in FILE.

    Runs until Ctrl-C or SIGTERM. With --available-now, runs until the stored messages are
    processed. The exit code is 3 if a processor has stopped because of an error, otherwise 0.
    """
    graph = load_graph(file, name)
    server = choose(graph.url)
    try:
        runner = Runner(
            graph,
            url=server.url,
            token=server.token or "",
            tls=server.ca,
            engine=engine,
            master=master,
            checkpoints=checkpoints,
            available_now=is_draining,
        )
        with (
            _printed_warnings(),
            _stopped_by_terminate(runner),
            runner,
            RunView(runner, is_json=is_json) as view,
        ):
            while not runner.wait(view.pause_seconds):
                view.show()
    except GraphError as error:
        raise refuse_graph(error) from error
    except ValueError as error:  # also a token file that cannot be read
        raise CommandRefused(str(error)) from error
    except ClientError as error:
        raise error_report(error) from error
    for id, reason in runner.stopped.items():
        click.echo(f"semel: {printable(id)} stopped: {printable(reason)}", err=True)
    return EXIT_STOPPED if runner.stopped else 0


@contextmanager
def _stopped_by_terminate(runner: Runner) -> Iterator[None]:
    """While the block runs, SIGTERM stops the runner cleanly. Service managers send SIGTERM."""
    # Only the main thread can set signal handlers.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: runner.stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _PrintWarning(logging.Handler):
    """Prints log records on stderr, as the command prints its own messages."""

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname.lower()
        click.echo(f"semel: {level}: {printable(record.getMessage())}", err=True)


@contextmanager
def _printed_warnings() -> Iterator[None]:
    """While the block runs, print the warnings of pipelines instead of passing them to logging."""
    log, handler = logging.getLogger(LOG), _PrintWarning(logging.WARNING)
    propagated, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = propagated


# ---- run view ------------------------------------------------------------------------------------
# Progress is shown as a live table on a terminal, and as lines elsewhere. With --json, it is JSON.


# The fields shown for each processor, and their titles in the table.
_COLUMNS: Final = {
    "processor": "processor",
    "state": "state",
    "step": "step",
    "read": "read",
    "written": "written",
    "errors": "errors",
    "rows_per_second": "rows/s",
    "lag": "lag",
    "step_milliseconds": "step ms",
}


class RunView:
    """Prints a runner's gauges: as text on stderr, or as JSON on stdout if `is_json`."""

    def __init__(self, runner: Runner, *, is_json: bool) -> None:
        self._runner = runner
        self._is_json = is_json
        self._is_live = not is_json and sys.stderr.isatty()
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._rates = _Rates()
        self._begun = time.monotonic()

    def __enter__(self) -> Self:
        if self._is_live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_live:
            self._live.stop()
        self._rates.whole(self._runner.gauges, time.monotonic() - self._begun)
        if self._is_json:
            write_stdout(json_line(self._document()))
        else:
            self._console.print(self._table())

    @property
    def pause_seconds(self) -> float:
        """The time to wait between two calls of `show`."""
        return 0.25 if self._is_live else 2.0

    def show(self) -> None:
        """Print the current gauges."""
        self._rates.measure(self._runner.gauges, time.monotonic())
        if self._is_live:
            self._live.update(self._table(), refresh=True)
        elif self._is_json:
            write_stdout(json_line(self._document()))
        else:
            for gauge in self._runner.gauges.values():
                click.echo(_line(gauge, self._rates.of(gauge)), err=True)

    def _facts(self) -> list[dict[str, Any]]:
        return [_facts(gauge, self._rates.of(gauge)) for gauge in self._runner.gauges.values()]

    def _document(self) -> dict[str, Any]:
        return {
            "graph": self._runner.graph.id,
            "engine": self._runner.engine,
            "is_over": self._runner.is_over,
            "processors": self._facts(),
        }

    def _table(self) -> Table:
        rows = [[facts[key] for key in _COLUMNS] for facts in self._facts()]
        cells = [[x if isinstance(x, str) else f"{x:,}" for x in row] for row in rows]
        titles = list(_COLUMNS.values())
        return text_table(titles, cells, right=titles[2:])


def _facts(gauge: Gauge, rate: float) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "processor": gauge.processor,
        "role": str(gauge.role),
        "state": str(gauge.state),
        "step": gauge.step,
        "read": gauge.read,
        "written": gauge.written,
        "errors": gauge.errors,
        "rows_per_second": round(rate),
        "lag": gauge.lag,
        "step_milliseconds": round(gauge.step_seconds * 1000, 1),
    }
    return {**facts, "reason": gauge.reason} if gauge.reason else facts


def _line(gauge: Gauge, rate: float) -> str:
    return (
        f"{printable(gauge.processor)}: {gauge.state}, step {gauge.step}, {_rows(gauge):,} rows,"
        f" {rate:,.0f} rows/s, lag {gauge.lag:,}, {gauge.errors:,} errors"
    )


def _rows(gauge: Gauge) -> int:
    """Return how many messages a processor has read. For a source, count the written messages."""
    return gauge.read or gauge.written


class _Rates:
    """The rate of each processor, in rows per second. `of` returns the last calculated rate.

    `measure` calculates the rates since the previous call of `measure`. `whole` calculates the
    average rates of the whole run.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}
        self._by_name: dict[str, float] = {}

    def of(self, gauge: Gauge) -> float:
        return self._by_name.get(gauge.processor, 0.0)

    def measure(self, gauges: dict[str, Gauge], now: float) -> None:
        for name, gauge in gauges.items():
            rows = _rows(gauge)
            at, before = self._last.get(name, (now, rows))
            if now > at:
                self._by_name[name] = (rows - before) / (now - at)
            self._last[name] = (now, rows)

    def whole(self, gauges: dict[str, Gauge], seconds: float) -> None:
        for name, gauge in gauges.items():
            self._by_name[name] = _rows(gauge) / max(seconds, 1e-9)


# ---- trace ---------------------------------------------------------------------------------------


@click.command("trace")
@click.argument("graph", type=Name())
@click.argument("processor", type=Name(), required=False)
@click.option(
    "--steps",
    "count",
    type=Number(1),
    default=20,
    show_default=True,
    help="Show only the newest N steps.",
)
@remote
def trace_command(
    client: Client, *, graph: str, processor: str | None, count: int, is_json: bool
) -> None:
    """Show the last steps of GRAPH, or only those of PROCESSOR.

    Prints the outcome, the input ranges, the output ranges, the duration and the hash of each step.
    """
    try:
        steps = trace_of(client, graph, processor)[-count:]
    except StreamNotFound as error:
        raise CommandRefused(
            f"graph {graph} has no trace; `semel run` creates the trace", EXIT_REFUSED
        ) from error
    if is_json:
        for step in steps:
            write_stdout(json_line(step))
        return
    if not steps:
        what = f"{graph}/{processor}" if processor is not None else f"graph {graph}"
        click.echo(f"semel: {printable(what)} has no steps in its trace", err=True)
        return
    titles = ("processor", "step", "outcome", "inputs", "outputs", "ms", "hash")
    # Long lines are wrapped only on a terminal.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 1_000)
    console.print(text_table(titles, map(_cells, steps)))


def _cells(step: TracedStep) -> tuple[object, ...]:
    inputs = [(path, start, to) for path, _, start, to in step.ranges]
    if step.outputs is None:
        outputs = ", ".join(f"{path} {count} at ?" for path, count in step.written.items())
    else:
        outputs = _ranges((path, first, end) for path, (first, end) in step.outputs.items())
    timing = (f"{step.milliseconds:g}", step.hash[:12])
    return (step.processor, step.number, step.outcome, _ranges(inputs), outputs, *timing)


def _ranges(ranges: Iterable[tuple[str, str, str]]) -> str:
    return ", ".join(f"{path} {_short(first)}..{_short(end)}" for path, first, end in ranges)


def _short(offset: str) -> str:
    return str(int(offset.rpartition("_")[2]))
