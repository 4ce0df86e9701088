"""`semel doctor`: check this machine, and a data directory."""

import os
from typing import Any, Final

import click
import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from semel.cli.environment import Check, check_environment, check_space, check_spark
from semel.cli.exit_codes import (
    EXIT_CORRUPT,
    EXIT_DISK,
    EXIT_NO_INPUT,
    EXIT_UNAVAILABLE,
    CommandRefused,
)
from semel.cli.output import ProgressLine, printable, size_text
from semel.cli.read_only import DamagedStore, ReadOnlyDisk, check_readable, is_in_use, open_store
from semel.journal.checkpoint import FILE_NAME, read_position
from semel.journal.disk import FORMAT_VERSION, IDENTITY_NAME, read_identity
from semel.journal.segments import segment_lsn
from semel.journal.store import BadSeal
from semel.journal.verify import Finding, Report, verify
from semel.model.errors import CorruptData

# ---- directory -----------------------------------------------------------------------------------
# What can be checked without reading the whole directory.


class Overview(Struct):
    """The checks of a directory, and the facts they found."""

    is_in_use: bool = False
    is_corrupt: bool = False
    format_version: int | None = None
    segment_count: int = 0
    segment_bytes: int = 0
    checkpoint_lsn: int | None = None
    checks: list[Check] = []

    def _corrupt(self, name: str, message: str) -> None:
        self.is_corrupt = True
        self.checks.append(Check(name, "fail", message))

    def add_lock(self, path: str) -> None:
        self.is_in_use = is_in_use(path)
        detail = "in use by a running process" if self.is_in_use else "not in use"
        self.checks.append(Check("directory", "info", detail))

    def add_identity(self, disk: ReadOnlyDisk) -> None:
        try:
            read_identity(disk)
        except FileNotFoundError:
            self._corrupt("format", f"{IDENTITY_NAME} is missing")
        except CorruptData as error:
            self._corrupt("format", str(error))
        else:
            self.format_version = FORMAT_VERSION
            self.checks.append(Check("format", "ok", f"version {FORMAT_VERSION}"))

    def add_segments(self, disk: ReadOnlyDisk) -> None:
        for name in disk.names():
            if segment_lsn(name) is not None:
                file = disk.open(name)
                self.segment_bytes += file.size()
                file.close()
                self.segment_count += 1
        detail = f"{self.segment_count:,} segments, {size_text(self.segment_bytes)}"
        self.checks.append(Check("journal", "ok", detail))

    def add_checkpoint(self, path: str) -> None:
        try:
            store = open_store(path, is_shared=self.is_in_use)
            with store.read() as view:
                position = read_position(view)
            store.close()
        except (CorruptData, BadSeal, msgspec.DecodeError) as error:
            self._corrupt("checkpoint", str(error))
            return
        self.checkpoint_lsn = None if position is None else position.lsn
        detail = "none yet" if position is None else f"at position {position.lsn:,}"
        self.checks.append(Check("checkpoint", "ok", detail))


def inspect_directory(path: str) -> Overview:
    """Return the result of all quick checks of a directory."""
    disk = ReadOnlyDisk(path)
    overview = Overview()
    overview.add_lock(path)
    overview.add_identity(disk)
    overview.add_segments(disk)
    overview.add_checkpoint(path)
    return overview


# ---- doctor --------------------------------------------------------------------------------------


_STYLES: Final = {"ok": "green", "info": "cyan", "warn": "yellow", "fail": "bold red"}


@click.command("doctor")
@click.option("--data", metavar="DIR", help="A data directory to check.")
@click.option(
    "--verify", "is_deep", is_flag=True, help="Read the whole directory and check every byte."
)
@click.option("--json", "is_json", is_flag=True, help="Print JSON, for programs.")
def doctor_command(data: str | None, *, is_deep: bool, is_json: bool) -> int:
    """Check this machine and Spark on it; with --data, this machine and a data directory.

    Writes nothing and takes no lock. Exit codes: 0 no problem found, 65 the data is corrupt,
    66 the directory does not exist, 69 something that semel needs is missing.
    """
    if is_deep and data is None:
        raise CommandRefused("--verify requires a directory: semel doctor --verify --data DIR")
    checks = check_environment()
    overview = report = None
    if data is None:
        checks.extend(check_spark())
    else:
        _check_directory(data)
        checks.append(check_space(data))
        overview = inspect_directory(data)
        checks.extend(overview.checks)
        if is_deep:
            report = _verify(data, overview, is_quiet=is_json)
    code = _exit_code(checks, overview, report)
    if is_json:
        click.echo(_as_json(data, checks, overview, report, code))
    else:
        _print(data, checks, overview, report)
    return code


def _check_directory(path: str) -> None:
    if not os.path.isdir(path):
        what = "is not a directory" if os.path.exists(path) else "does not exist"
        raise CommandRefused(
            f"{path} {what}; give --data the directory a server was started with", EXIT_NO_INPUT
        )
    try:
        names = os.listdir(path)
    except OSError as error:
        message = f"{path} cannot be read ({error.strerror}); run as the user of the server"
        raise CommandRefused(message, EXIT_DISK) from error
    if not any(name in {IDENTITY_NAME, FILE_NAME} or name.endswith(".seg") for name in names):
        raise CommandRefused(
            f"{path} is not a semel data directory; pass the --data that `semel serve` was started"
            " with",
            EXIT_NO_INPUT,
        )


def _exit_code(checks: list[Check], overview: Overview | None, report: Report | None) -> int:
    if overview is not None and overview.is_corrupt:
        return EXIT_CORRUPT
    if report is not None and not report.is_sound:
        return EXIT_CORRUPT
    return EXIT_UNAVAILABLE if any(check.status == "fail" for check in checks) else 0


def _verify(path: str, overview: Overview, *, is_quiet: bool) -> Report:
    is_shared = overview.is_in_use
    with ProgressLine(is_quiet=is_quiet) as steps:
        try:
            check_readable(path, is_shared=is_shared)
            store = open_store(path, is_shared=is_shared)
        except CorruptData as error:
            # Report it, and verify the journal alone.
            return verify(ReadOnlyDisk(path), DamagedStore(error), steps.show)
        report = verify(ReadOnlyDisk(path), store, steps.show)
        store.close()
    if not os.path.exists(os.path.join(path, FILE_NAME)):
        report.note(FILE_NAME, None, "is missing; the next start replays the whole journal")
    if is_shared:
        report.note(
            path, None, "is in use by a running process; findings at its end may be outdated"
        )
    return report


# ---- printing ------------------------------------------------------------------------------------


def _as_json(
    path: str | None,
    checks: list[Check],
    overview: Overview | None,
    report: Report | None,
    code: int,
) -> str:
    document: dict[str, Any] = {"exit_code": code, "checks": checks}
    if overview is not None:
        document["directory"] = {"path": path, **msgspec.structs.asdict(overview)}
        del document["directory"]["checks"]
    if report is not None:
        document["verify"] = report
    return msgspec.json.format(msgspec.json.encode(document)).decode()


def _print(
    path: str | None, checks: list[Check], overview: Overview | None, report: Report | None
) -> None:
    console = Console(highlight=False)
    width = max(len(check.name) for check in checks)
    for check in checks:
        line = Text(f"{check.status:<6}", style=_STYLES[check.status])
        line.append(f"{check.name:<{width}}  {printable(check.detail)}", style="default")
        console.print(line, soft_wrap=True)  # a command in the advice must stay on one line
    if report is not None:
        console.print()
        console.print(_totals(report))
        _print_findings(console, report)
    elif overview is not None and path is not None:
        console.print(f"\nTo check every byte: semel doctor --verify --data {printable(path)}")


def _totals(report: Report) -> Table:
    table = Table(title="read", title_justify="left", box=None, show_header=False, pad_edge=False)
    segments = f"{report.segment_count:,} ({size_text(report.segment_bytes)})"
    position = "none" if report.checkpoint_lsn is None else f"{report.checkpoint_lsn:,}"
    for name, value in (
        ("segments", segments),
        ("frames", f"{report.frame_count:,}"),
        ("messages", f"{report.message_count:,}"),
        ("streams at the checkpoint", f"{report.stream_count:,}"),
        ("rows of the checkpoint", f"{report.row_count:,}"),
        ("rows of the index", f"{report.index_row_count:,}"),
        ("positions in the index", f"{report.index_position_count:,}"),
        ("checkpoint at", position),
        ("journal ends at", f"{report.end_lsn:,}"),
    ):
        table.add_row(name, Text(value, justify="right"))
    return table


def _print_findings(console: Console, report: Report) -> None:
    for finding in report.findings:
        console.print(_finding_text(finding), soft_wrap=True)
    if report.omitted_count:
        console.print(f"and {report.omitted_count:,} more findings")
    damage = sum(not finding.is_note for finding in report.findings)
    if report.is_sound:
        console.print(Text("sound: all checksums and cross-checks are correct", style="green"))
    else:
        count = f"{damage:,} finding" + ("" if damage == 1 else "s")
        console.print(Text(f"CORRUPT: {count} above; nothing was changed", "bold red"))


def _finding_text(finding: Finding) -> Text:
    where = finding.file
    if finding.position is not None:
        where += f" at byte {finding.position}"
    label = Text("note     ", "cyan") if finding.is_note else Text("CORRUPT  ", "bold red")
    return label.append(f"{printable(where)}: {printable(finding.message)}", style="default")
