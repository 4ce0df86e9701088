"""The `semel` command."""

import importlib
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn

import click

import semel
from semel.cli.output import (
    EXIT_DISK,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    CommandRefused,
    output_error,
    printable,
)
from semel.model.errors import EngineError

# The module and the function of each command, in the order in which a new user needs the commands.
_COMMANDS: Final = {
    "serve": "serve:serve_command",
    "create": "streams:create_command",
    "append": "append:append_command",
    "read": "streams:read_command",
    "tail": "streams:tail_command",
    "head": "streams:head_command",
    "ls": "streams:ls_command",
    "close": "streams:close_command",
    "trim": "streams:trim_command",
    "delete": "streams:delete_command",
    "topics": "topics:topics_command",
    "policies": "policies:policies_command",
    "producers": "producers:producers_command",
    "txn": "transactions:txn_command",
    "groups": "groups:groups_command",
    "subscriptions": "subscriptions:subscriptions_command",
    "dead": "dead:dead_command",
    "sinks": "transactions:sinks_command",
    "tokens": "tokens:tokens_command",
    "audit": "audit:audit_command",
    "webhook-key": "webhook_keys:webhook_key_command",
    "context": "contexts:context_command",
    "run": "graph:run_command",
    "graph": "graph:graph_command",
    "trace": "graph:trace_command",
    "doctor": "doctor:doctor_command",
    "restore": "restore:restore_command",
    "demo": "demo.command:demo_command",
    "bench": "bench:command",
}


class _Commands(click.Group):
    """The group of all commands.

    It imports a command when the command is used, and it turns errors into exit codes.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, or None if there is no such command.

        Only the module of this command is imported, so that the program starts fast.
        """
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(f"semel.cli.{module}"), name)
        return command

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run a command and exit. An error is printed with a traceback only if it is a bug."""
        extra["standalone_mode"] = False  # click raises, and _exit_code_of chooses the exit code
        sys.exit(_exit_code_of(partial(super().main, *args, **extra)))


def _exit_code_of(run: Callable[[], Any]) -> int:
    try:
        code = run()
    except CommandRefused as error:
        return _print_error(error.format_message(), error.code)
    except click.UsageError as error:
        error.show()
        return EXIT_USAGE
    except click.ClickException as error:
        return _print_error(error.format_message(), EXIT_USAGE)
    except (click.Abort, KeyboardInterrupt):
        return _print_error("interrupted", EXIT_INTERRUPTED)
    except EngineError as error:
        return _print_error(str(error), error.exit_code)
    except OSError as error:
        return _print_error(output_error(error) or str(error), EXIT_DISK)
    return code if isinstance(code, int) else 0


def _open_streams() -> None:
    """Open /dev/null for each standard stream that is closed, as by `>&-` in a shell.

    Otherwise a file or a connection would get its number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _print_error(message: str, code: int) -> int:
    click.echo(f"semel: {printable(message)}", err=True)
    return code


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(semel.__version__, prog_name="semel")
def cli() -> None:
    """A durable log with exactly-once writes."""


def main() -> NoReturn:
    _open_streams()
    cli.main()
