"""`semel doctor`: check this machine, Spark, and a data directory."""

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import resource
import shlex
import shutil
import sys
from contextlib import closing
from typing import Any, Final, Literal

import click
import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from semel.cli.output import (
    EXIT_CORRUPT,
    EXIT_UNAVAILABLE,
    CommandRefused,
    ProgressLine,
    printable,
    size_text,
)
from semel.cli.read_only import (
    DamagedStore,
    ReadOnlyDisk,
    check_directory,
    is_in_use,
    open_store,
    print_findings,
    wide_rights,
)
from semel.cli.space import SegmentUse, print_segments, segment_uses, space_text
from semel.journal.checkpoint import FILE_NAME, read_position
from semel.journal.disk import disk_failed
from semel.journal.identity import NEWEST_FORMAT_VERSION, NewerFormat, read_identity
from semel.journal.lmdb_store import has_content
from semel.journal.recovery import INTERRUPTED, check_new
from semel.journal.segments import segment_lsn
from semel.journal.store import BadSeal
from semel.journal.verify import Report, verify
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
    generation: int | None = None
    segment_count: int = 0
    segment_bytes: int = 0
    checkpoint_lsn: int | None = None
    wide_rights: list[str] = []
    segments: list[SegmentUse] | None = None  # only if they were requested
    checks: list[Check] = []

    @property
    def is_newer(self) -> bool:
        """True if a newer version of semel has written the directory. It cannot be verified."""
        return (self.format_version or 0) > NEWEST_FORMAT_VERSION

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

    def add_identity(self, disk: ReadOnlyDisk, path: str) -> None:
        try:
            identity = read_identity(disk)
        except FileNotFoundError:
            self._add_no_identity(disk, path)
        except NewerFormat as error:
            self.format_version = error.version
            self.checks.append(Check("format", "fail", str(error)))
        except CorruptData as error:
            self._corrupt("format", str(error))
        else:
            self.format_version = identity.version
            self.generation = identity.generation
            detail = f"version {identity.version}, generation {identity.generation}"
            self.checks.append(Check("format", "ok", detail))

    def _add_no_identity(self, disk: ReadOnlyDisk, path: str) -> None:
        try:
            store = open_store(path, is_shared=self.is_in_use)
            check_new(disk, store)
            store.close()
        except CorruptData as error:
            self._corrupt("format", str(error))
        else:
            self.checks.append(Check("format", "info", INTERRUPTED))

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
            damage = store.damage
            store.close()
        except (CorruptData, BadSeal, msgspec.DecodeError) as error:
            self._corrupt("checkpoint", str(error))
            return
        self.checkpoint_lsn = None if position is None else position.lsn
        detail = "none yet" if position is None else f"at position {position.lsn:,}"
        self.checks.append(Check("checkpoint", "ok", detail))
        if damage is not None:
            self.checks.append(Check("meta page", "info", damage))

    def add_space(self, path: str, *, is_quiet: bool) -> None:
        """Find out what keeps each segment. This reads the whole index, and can take minutes."""
        try:
            store = open_store(path, is_shared=self.is_in_use)
        except CorruptData:
            self.segments = []  # `add_checkpoint` reports the damage
            return
        with closing(store), ProgressLine(is_quiet=is_quiet) as steps:
            self.segments = segment_uses(store, ReadOnlyDisk(path), steps.show)
        if self.segments:
            self.checks.append(Check("space", "info", space_text(self.segments)))

    def add_rights(self, path: str) -> None:
        self.wide_rights = wide_rights(path)
        if not self.wide_rights:
            self.checks.append(Check("rights", "ok", "only the owner can read the data"))
            return
        count = len(self.wide_rights)
        what = "1 file gives" if count == 1 else f"{count:,} files give"
        command = f"chmod -R go-rwx {shlex.quote(path)}"
        detail = f"{what} rights to other users than the owner; to remove them, run: {command}"
        self.checks.append(Check("rights", "warn", detail))


def inspect_directory(path: str) -> Overview:
    """Run all quick checks on a directory. Return the results."""
    disk = ReadOnlyDisk(path)
    overview = Overview()
    overview.add_lock(path)
    overview.add_identity(disk, path)
    overview.add_segments(disk)
    overview.add_checkpoint(path)
    overview.add_rights(path)
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

    The exit code is 65 if the data is corrupt or has a newer format, 66 if there is no such data
    directory, 69 if something that semel needs is missing, and 74 if a file cannot be read.
    """
    if (is_deep or is_listed) and data is None:
        option = "--verify" if is_deep else "--segments"
        raise CommandRefused(f"{option} requires --data; run `semel doctor {option} --data DIR`")
    checks = check_environment()
    overview = report = None
    if data is None:
        checks.extend(check_spark())
    else:
        check_directory(data)
        try:
            checks.append(check_space(data))
            overview = inspect_directory(data)
            if is_listed:
                overview.add_space(data, is_quiet=is_json)
            checks.extend(overview.checks)
            if is_deep and not overview.is_newer:
                report = _verify(data, overview, is_quiet=is_json)
        except OSError as error:
            raise disk_failed(f"{error.filename or data}: cannot be read", error.errno) from error
    code = _exit_code(checks, overview, report)
    if is_json:
        click.echo(_as_json(data, checks, overview, report, code))
    else:
        _print(data, checks, overview, report)
        if overview is not None and overview.segments is not None:
            print_segments(overview.segments)
    return code


def _exit_code(checks: list[Check], overview: Overview | None, report: Report | None) -> int:
    if overview is not None and (overview.is_corrupt or overview.is_newer):
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
        if store.damage is not None:
            report.note(FILE_NAME, None, store.damage)
        store.close()
    if not has_content(os.path.join(path, FILE_NAME)):
        report.note(
            FILE_NAME,
            None,
            "the file is missing or empty; the next start replays the whole journal",
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
        print_findings(console, report)
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
