"""`semel run`: a graph at work."""

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Final

import click

from semel.cli.exits import EXIT_STOPPED, Refused
from semel.cli.graph_file import load_graph, refuse
from semel.cli.options import URL_DEFAULT
from semel.cli.remote import complaint
from semel.cli.run_view import RunView
from semel.cli.text import printable
from semel.client.errors import ClientError
from semel.pipeline.engines import ENGINES
from semel.pipeline.problems import GraphError
from semel.pipeline.runner import Runner

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("run")
@click.argument("file", type=_FILE)
@click.option("--graph", "name", help="Which graph, if the file has several.")
@click.option(
    "--url",
    envvar="SEMEL_URL",
    show_envvar=True,
    help=f"Where the server is; else the graph's, or {URL_DEFAULT}.",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    help="Where functions run: on Spark, or in this process. Without: Spark if the graph needs it.",
)
@click.option("--master", help="The Spark master, such as local[*] or spark://host:7077.")
@click.option("--checkpoints", help="Where stateful processors keep theirs: a directory, or a URI.")
@click.option("--available-now", "is_draining", is_flag=True, help="Process what is there and end.")
@click.option("--json", "is_json", is_flag=True, help="Print progress as JSON, for programs.")
def command(
    *,
    file: Path,
    name: str | None,
    url: str | None,
    engine: str | None,
    master: str | None,
    checkpoints: str | None,
    is_draining: bool,
    is_json: bool,
) -> int:
    """Run the graph in FILE until Ctrl-C, or until everything that is there is processed.

    Ends with 0 if every processor has ended, and with 3 if one has stopped.
    """
    graph = load_graph(file, name)
    try:
        runner = Runner(
            graph,
            url=url,
            engine=engine,
            master=master,
            checkpoints=checkpoints,
            available_now=is_draining,
        )
        with _stopped_by_terminate(runner), runner, RunView(runner, is_json=is_json) as view:
            while not runner.wait(view.pause_seconds):
                view.show()
    except GraphError as error:
        raise refuse(error) from error
    except ValueError as error:
        raise Refused(str(error)) from error
    except ClientError as error:
        raise complaint(error) from error
    for id, reason in runner.stopped.items():
        click.echo(f"semel: {printable(id)} stopped: {printable(reason)}", err=True)
    return EXIT_STOPPED if runner.stopped else 0


class _stopped_by_terminate:
    """Lets SIGTERM stop a runner in good order, as a service manager wants it."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._stop)

    def __exit__(self, *error: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._before)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._runner.stop()
