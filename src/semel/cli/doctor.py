"""`semel doctor`: check this machine, Spark, and a data directory."""

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import resource
import shutil
import sys
from typing import Any, Final, Literal

import click
import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from semel.cli.output import (
    EXIT_CORRUPT,
    EXIT_DISK,
    EXIT_NO_INPUT,
    EXIT_UNAVAILABLE,
    CommandRefused,
    ProgressLine,
    printable,
    size_text,
)
from semel.cli.read_only import (
    DamagedStore,
    ReadOnlyDisk,
    SegmentUse,
    is_in_use,
    open_store,
    segment_uses,
    space_text,
)
from semel.journal.checkpoint import FILE_NAME, read_position
from semel.journal.disk import FORMAT_VERSION, IDENTITY_NAME, read_identity
from semel.journal.segments import segment_lsn
from semel.journal.store import BadSeal
from semel.journal.verify import Finding, Report, verify
from semel.model.errors import CorruptData
from semel.model.limits import RESERVE_BYTES_DEFAULT, SEGMENT_BYTES_DEFAULT
from semel.spark.runtime.environment import (
    JavaMissing,
    ProbeResult,
    find_java,
    is_fit,
    probe,
    python_advice,
    python_problem,
    worker_python,
)
from semel.version import install_advice

# ---- this machine --------------------------------------------------------------------------------


DEPENDENCIES: Final = ("click", "crc32c", "lmdb", "msgspec", "rich", "uvloop")
_PYTHON_MIN: Final = (3, 11)
_FILES_MIN: Final = 4_096
_FREE_BYTES_MIN: Final = 2 * SEGMENT_BYTES_DEFAULT + RESERVE_BYTES_DEFAULT


class Check(Struct, frozen=True):
    """The result of one check."""

    name: str
    status: Literal["ok", "info", "warn", "fail"]
    detail: str


def check_environment() -> list[Check]:
    """Check Python, the dependencies and the limit on open files. Return the results."""
    dependencies = [_check_dependency(name) for name in DEPENDENCIES]
    return [_check_python(), *dependencies, _check_files()]


def _check_python() -> Check:
    version = platform.python_version()
    if sys.version_info >= _PYTHON_MIN:
        return Check("python", "ok", version)
    return Check("python", "fail", f"{version} is too old; install {_dotted(_PYTHON_MIN)} or newer")


def _check_dependency(name: str) -> Check:
    try:
        importlib.import_module(name)
        return Check(name, "ok", importlib.metadata.version(name))
    except ImportError as error:
        return Check(name, "fail", f"the import failed ({error}); install semel again")


def _check_files() -> Check:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # a server raises its soft limit to this
    if hard == resource.RLIM_INFINITY:
        return Check("open files", "ok", "no limit")
    if hard >= _FILES_MIN:
        return Check("open files", "ok", f"up to {hard}")
    return Check(
        "open files", "warn", f"only {hard} files can be open; raise `ulimit -Hn` to {_FILES_MIN}"
    )


def check_space(path: str) -> Check:
    """Check the free space on the file system that contains `path`. Return the result."""
    free = shutil.disk_usage(path).free
    if free >= _FREE_BYTES_MIN:
        return Check("free space", "ok", size_text(free))
    needed = size_text(_FREE_BYTES_MIN)
    detail = f"only {size_text(free)} is free; with default settings, a server needs {needed}"
    return Check("free space", "warn", detail)


# ---- spark ---------------------------------------------------------------------------------------
# A server does not need Spark. Each problem with Spark is therefore only a warning.


Version = tuple[int, ...]

# Name, lowest supported version, and first version that is too new. The limits of the extra `spark`
# in pyproject.toml are the same.
REQUIRED: Final = (("pyspark", (4, 2), (5,)), ("pyarrow", (18,), None), ("pandas", (2, 2), (3,)))


def check_spark() -> list[Check]:
    """Check what semel needs to work with Spark. Return the results.

    If Spark is not installed, return a single result that says so.
    """
    if importlib.util.find_spec("pyspark") is None:
        advice = "to read and write streams with Spark, " + install_advice("'.[spark]'")
        return [Check("spark", "info", f"pyspark is not installed; {advice}")]
    packages = [_check_package(*requirement) for requirement in REQUIRED]
    python = worker_python()
    result = probe(python)
    checks = [*packages, _check_java(), _check_worker_python(python, result)]
    if result is not None and is_fit(result):
        checks.append(_check_format(result))
    return checks


def pip_requirement(name: str, lowest: Version, too_new: Version | None) -> str:
    """Return the requirement in pip's syntax, such as `pandas>=2.2,<3`."""
    return f"{name}>={_dotted(lowest)}" + (f",<{_dotted(too_new)}" if too_new else "")


def _check_package(name: str, lowest: Version, too_new: Version | None) -> Check:
    advice = f"run: pip install '{pip_requirement(name, lowest, too_new)}'"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "warn", f"the package is missing; {advice}")
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if numbers < lowest or (too_new is not None and numbers >= too_new):
        return Check(name, "warn", f"version {version} is not supported; {advice}")
    return Check(name, "ok", version)


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _check_java() -> Check:
    try:
        java = find_java()
    except JavaMissing as error:
        return Check("java", "warn", str(error))
    return Check("java", "ok", f"{java.version} in {java.home}, found through {java.origin}")


def _check_worker_python(python: str, result: ProbeResult | None) -> Check:
    if result is not None and is_fit(result):
        return Check("python of tasks", "ok", f"{python}, {result.version}")
    return Check(
        "python of tasks",
        "warn",
        f"{python} {python_problem(result)}; {python_advice()} (or use semel.spark.session())",
    )


def _check_format(result: ProbeResult) -> Check:
    """Check whether Spark finds the format "semel". Return the result.

    Spark imports all packages named `pyspark_...` together. If one import fails, Spark finds none
    of the formats in these packages.
    """
    broken = {name: why for name, why in result.packages.items() if why}
    if not broken:
        return Check(
            'format "semel"', "ok", "Spark finds the data source in the package pyspark_semel"
        )
    names = " ".join(broken)
    reasons = "; ".join(f"{name}: {why}" for name, why in broken.items())
    advice = f"repair the packages {names}, or call semel.spark.register(spark)"
    return Check('format "semel"', "warn", f"Spark finds no format 'semel' ({reasons}); {advice}")


# ---- directory -----------------------------------------------------------------------------------
# These are the quick checks. They do not read the whole directory.


class Overview(Struct):
    """The results of the quick checks of a directory, and the values that the checks read."""

    is_in_use: bool = False
    is_corrupt: bool = False
    format_version: int | None = None
    segment_count: int = 0
    segment_bytes: int = 0
    checkpoint_lsn: int | None = None
    segments: list[SegmentUse] = []
    checks: list[Check] = []

    def _corrupt(self, name: str, message: str) -> None:
        self.is_corrupt = True
        self.checks.append(Check(name, "fail", message))

    def add_lock(self, path: str) -> None:
        self.is_in_use = is_in_use(path)
        detail = (
            "a running process uses the directory"
            if self.is_in_use
            else "no process uses the directory"
        )
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
                self.segments = segment_uses(view, ReadOnlyDisk(path))
            store.close()
        except (CorruptData, BadSeal, msgspec.DecodeError) as error:
            self._corrupt("checkpoint", str(error))
            return
        self.checkpoint_lsn = None if position is None else position.lsn
        detail = "none yet" if position is None else f"at position {position.lsn:,}"
        self.checks.append(Check("checkpoint", "ok", detail))
        if self.segments:
            self.checks.append(Check("space", "info", space_text(self.segments)))


def inspect_directory(path: str) -> Overview:
    """Run all quick checks on a directory. Return the results."""
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
@click.option("--data", metavar="DIR", help="Check this data directory instead of Spark.")
@click.option(
    "--verify", "is_deep", is_flag=True, help="Read the whole directory and check every byte."
)
@click.option(
    "--segments", "is_listed", is_flag=True, help="List the journal files and what keeps each."
)
@click.option("--json", "is_json", is_flag=True, help="Print JSON, for programs.")
def doctor_command(data: str | None, *, is_deep: bool, is_listed: bool, is_json: bool) -> int:
    """Check this machine, and Spark or a data directory.

    Changes no data. A server can use the directory during the check.

    The exit code is 65 if the data is corrupt, 66 if there is no such data directory, and 69 if
    something that semel needs is missing.
    """
    if (is_deep or is_listed) and data is None:
        option = "--verify" if is_deep else "--segments"
        raise CommandRefused(f"{option} requires --data; run `semel doctor {option} --data DIR`")
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
        if is_listed and overview is not None:
            _print_segments(overview.segments)
    return code


def _check_directory(path: str) -> None:
    if not os.path.isdir(path):
        what = "is not a directory" if os.path.exists(path) else "does not exist"
        raise CommandRefused(
            f"{path} {what}; pass the same --data as to `semel serve`", EXIT_NO_INPUT
        )
    try:
        names = os.listdir(path)
    except OSError as error:
        message = f"{path} cannot be read ({error.strerror}); run as the user that runs the server"
        raise CommandRefused(message, EXIT_DISK) from error
    if not any(name in {IDENTITY_NAME, FILE_NAME} or name.endswith(".seg") for name in names):
        raise CommandRefused(
            f"{path} is not a semel data directory; pass the same --data as to `semel serve`",
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
            store = open_store(path, is_shared=is_shared)
        except CorruptData as error:
            # Report the error as a finding, and verify the journal without the checkpoint.
            return verify(ReadOnlyDisk(path), DamagedStore(error), steps.show)
        report = verify(ReadOnlyDisk(path), store, steps.show)
        store.close()
    if not os.path.exists(os.path.join(path, FILE_NAME)):
        report.note(
            FILE_NAME, None, "the file is missing; the next start replays the whole journal"
        )
    if is_shared:
        report.note(
            path,
            None,
            "some findings can be outdated, because a running process can change the data during"
            " this check",
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
        console.print(f"\nTo check every byte, run: semel doctor --verify --data {printable(path)}")


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
        console.print(Text("the data is sound: all checks have passed", style="green"))
    else:
        count = f"{damage:,} finding" + ("" if damage == 1 else "s")
        console.print(
            Text(f"the data is CORRUPT; see the {count} above (doctor changed no data)", "bold red")
        )


def _finding_text(finding: Finding) -> Text:
    where = finding.file
    if finding.position is not None:
        where += f" at byte {finding.position}"
    label = Text("note     ", "cyan") if finding.is_note else Text("CORRUPT  ", "bold red")
    return label.append(f"{printable(where)}: {printable(finding.message)}", style="default")


def _print_segments(segments: list[SegmentUse]) -> None:
    """Print a table with one row for each segment."""
    table = Table(title="segments", title_justify="left", box=None, pad_edge=False)
    for name in ("segment", "size", "needed", "kept by"):
        table.add_column(name, justify="right" if name in {"size", "needed"} else "left")
    for segment in segments:
        more = segment.owner_count - len(segment.kept_by)
        kept_by = ", ".join(segment.kept_by) + (f" and {more:,} more" if more else "")
        table.add_row(
            segment.segment,
            size_text(segment.disk_bytes),
            size_text(segment.live_bytes),
            Text(printable("it is being written" if segment.is_open else kept_by)),
        )
    console = Console(highlight=False)
    console.print()
    console.print(table, soft_wrap=True)
