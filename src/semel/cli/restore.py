"""`semel restore`: accept a data directory that was restored from an older copy."""

import click
import msgspec
from rich.console import Console

from semel.broker.settings import SystemClock
from semel.cli.output import EXIT_CORRUPT, ChangingCommand, ProgressLine, printable
from semel.cli.read_only import ReadOnlyDisk, check_directory, open_store, print_findings
from semel.journal.checkpoint import FILE_NAME
from semel.journal.disk import RealDisk, disk_failed
from semel.journal.identity import ACCESS_FORMAT_VERSION, Identity, raise_generation
from semel.journal.verify import Report, verify
from semel.model.errors import CorruptData


@click.command("restore", cls=ChangingCommand)
@click.option(
    "--data", metavar="DIR", required=True, help="Data directory that was restored from a copy."
)
@click.option("--json", "is_json", is_flag=True, help="Print JSON, for programs.")
def restore_command(data: str, *, is_json: bool) -> int:
    """Accept a data directory that was restored from an older copy.

    Run it after the copy is in place, and before the server is started. It checks every byte, as
    `semel doctor --verify` does, and then raises the generation of the directory to the present
    time in milliseconds. Responses contain the generation. So a client notices that messages that
    it has read or written may be missing.

    The exit code is 65 if the data is corrupt, 66 if there is no such data directory, and 73 if a
    process uses the directory. Then nothing is changed.
    """
    check_directory(data)
    disk = RealDisk(data)
    try:
        disk.lock()
        report = _verify(data, is_quiet=is_json)
        identity = _raise_generation(disk) if report.is_sound else None
    except OSError as error:
        raise disk_failed(f"{error.filename or data}: cannot restore", error.errno) from error
    finally:
        disk.close()
    if is_json:
        generation = None if identity is None else identity.generation
        document = {"directory": data, "generation": generation, "verify": report}
        click.echo(msgspec.json.format(msgspec.json.encode(document)).decode())
    else:
        print_findings(Console(highlight=False), report)
        if identity is not None:
            click.echo(f"{printable(data)} has generation {identity.generation} now")
            if identity.version == ACCESS_FORMAT_VERSION:
                click.echo(
                    "tokens that were revoked after this copy was made are valid again;"
                    " revoke them again: semel tokens ls, semel tokens revoke"
                )
    return EXIT_CORRUPT if identity is None else 0


def _verify(path: str, *, is_quiet: bool) -> Report:
    """Verify a locked directory. Raises DiskFailed or OSError."""
    try:
        store = open_store(path, is_shared=False)
    except CorruptData as error:
        report = Report()
        report.corrupt(error.file, error.position, str(error))
        return report
    with ProgressLine(is_quiet=is_quiet) as steps:
        report = verify(ReadOnlyDisk(path), store, steps.show)
    if store.damage is not None:
        report.note(FILE_NAME, None, store.damage)
    store.close()
    return report


def _raise_generation(disk: RealDisk) -> Identity:
    disk.begin_changes()
    try:
        return raise_generation(disk, SystemClock().now_ms())
    except BaseException:
        disk.cancel_changes()
        raise
