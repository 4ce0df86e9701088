"""`semel bench`: runs the benchmarks. They are in a separate package, semel-bench."""

from typing import Final

import click

import semel
from semel.cli.output import EXIT_UNAVAILABLE, CommandRefused
from semel.version import install_advice

# Both packages are installed together, so that their versions are equal.
_ADVICE: Final = install_advice(". ./src/semel_bench")


def _find_command() -> click.Command:
    """Return the command from semel-bench.

    If semel-bench cannot be used, return a command that fails and says how to install semel-bench.
    """
    try:
        import semel_bench
    except ModuleNotFoundError as error:
        if error.name != "semel_bench":
            raise
        return _unavailable(f"the benchmarks are not installed; {_ADVICE}")
    ours, theirs = semel.__version__, semel_bench.__version__
    if theirs != ours:
        return _unavailable(f"semel-bench {theirs} does not match semel {ours}; {_ADVICE}")
    from semel_bench.command import command

    return command


def _unavailable(message: str) -> click.Command:
    """Return a command that accepts any arguments and fails with `message`."""

    def refuse() -> None:
        raise CommandRefused(message, EXIT_UNAVAILABLE)

    return click.Command(
        "bench",
        callback=refuse,
        help="Measure the performance of semel. Requires the package semel-bench.",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )


command = _find_command()
