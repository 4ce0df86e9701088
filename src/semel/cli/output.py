"""Output of the commands: messages, facts, lists, JSON lines, progress and exit codes."""

import base64
import errno
import json
import os
import sys
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import TracebackType
from typing import Any, Final, Literal, Self

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from semel.client.values import Message
from semel.model.errors import CorruptData, DiskFailed
from semel.model.messages import is_json

# In JSON, tabs and line breaks occur only between tokens, never inside a string.
_ONE_LINE: Final = bytes.maketrans(b"\t\n\r", b"   ")


class Style(Enum):
    """The ways to print messages."""

    LINES = "one message per line"
    SAFE_LINES = "one message per line, with control characters escaped"
    JSON = "one JSON object per line"
    RAW = "the bytes of the messages, without separators"


def style_of(*, is_raw: bool, is_json: bool) -> Style:
    """Return the style that the options select.

    If no option is set, the style is one message per line. If the output is a terminal, control
    characters are then escaped.
    """
    if is_raw:
        return Style.RAW
    if is_json:
        return Style.JSON
    return Style.SAFE_LINES if sys.stdout.isatty() else Style.LINES


def render_messages(messages: Iterable[Message], style: Style) -> Iterator[bytes]:
    """Yield the bytes to print for each message."""
    for message in messages:
        if style is Style.RAW:
            yield message.raw
        elif style is Style.JSON:
            yield _object(message)
        else:
            is_safe = style is Style.SAFE_LINES
            yield _line(message.raw, is_safe=is_safe, is_json=is_json(message.content_type))


def _line(message: bytes, *, is_safe: bool, is_json: bool) -> bytes:
    line = message.translate(_ONE_LINE) if is_json else message.removesuffix(b"\n")
    if is_safe:
        text = line.decode("utf-8", "backslashreplace")
        line = (_json_printable(text) if is_json else printable(text)).encode()
    return line + b"\n"


def _json_printable(text: str) -> str:
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _object(message: Message) -> bytes:
    """Encode a message with its metadata as JSON. Fields that the message lacks are omitted."""
    fields: dict[str, Any] = {"offset": message.offset, "written_at_ms": message.written_ms}
    if message.time_ms is not None:
        fields["timestamp_ms"] = message.time_ms
    if message.key is not None:
        fields["key"] = _text_or_base64(message.key)
    if message.headers:
        fields["headers"] = [[name, _text_or_base64(value)] for name, value in message.headers]
    if is_json(message.content_type):
        fields["value"] = msgspec.Raw(message.raw.translate(_ONE_LINE))
    else:
        content = _text_or_base64(message.raw)
        fields |= {"text": content} if isinstance(content, str) else content
    return json_line(fields)


def _text_or_base64(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def json_line(value: object) -> bytes:
    """Encode a value as one line of JSON. On a terminal, control characters are escaped."""
    line = msgspec.json.encode(value)
    if sys.stdout.isatty():
        line = _json_printable(line.decode()).encode()
    return line + b"\n"


def write_stdout(data: bytes) -> None:
    """Write to standard output and flush.

    If the reader has closed standard output, as `head` does, end the command with exit code 0.
    """
    try:
        click.echo(data, nl=False)
    except BrokenPipeError:
        # The flush at exit must write to /dev/null. Otherwise it would raise the same error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(0) from None


def write_lines(lines: Iterable[str]) -> None:
    """Write lines of text, with control characters escaped."""
    write_stdout("".join(f"{printable(line)}\n" for line in lines).encode())


def report(sentence: str, facts: Mapping[str, object], *, is_json: bool) -> None:
    """Print the result of a command. Print `facts` as JSON if `is_json`, else print `sentence`."""
    if is_json:
        write_stdout(json_line(facts))
    else:
        write_lines([sentence])


def print_facts(
    facts: Mapping[str, object], document: object = None, *, is_json: bool = False
) -> None:
    """Print names and values, one pair per line. Omit the pairs whose value is None.

    If `is_json`, print `document` as JSON instead, or `facts` as JSON if `document` is None.
    """
    if is_json:
        write_stdout(json_line(facts if document is None else document))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in facts.items():
        if value is not None:
            text = ("no", "yes")[value] if isinstance(value, bool) else str(value)
            table.add_row(name.replace("_", " "), Text(printable(text), overflow="fold"))
    Console(highlight=False).print(table)


def print_list(
    documents: Iterable[object],
    titles: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    is_json: bool,
    right: Container[str] = (),
    whole: Container[str] = (),
    lines: Iterable[Sequence[object]] | None = None,
) -> None:
    """Print a list as JSON, as a table, or as lines.

    If `is_json`, print each document as a line of JSON. Otherwise, if the output is a terminal,
    print a table. If it is not a terminal, print each of `lines`, with tabs between its cells, or
    the first cell of each row if `lines` is None. `right` has the titles of right-aligned columns,
    and `whole` those of columns whose cells are never split.
    """
    if is_json:
        write_stdout(b"".join(map(json_line, documents)))
    elif sys.stdout.isatty():
        Console(highlight=False).print(text_table(titles, rows, right=right, whole=whole))
    else:
        printed = (cells[:1] for cells in rows) if lines is None else lines
        text = "".join("\t".join(printable(str(c)) for c in cells) + "\n" for cells in printed)
        write_stdout(text.encode())


def text_table(
    titles: Iterable[str],
    rows: Iterable[Iterable[object]],
    *,
    right: Container[str] = (),
    whole: Container[str] = (),
) -> Table:
    """Return a table without borders.

    The columns with a title in `right` are right-aligned. The cells of those with a title in
    `whole` are never split.
    """
    table = Table(box=None, pad_edge=False)
    for title in titles:
        justify: Literal["left", "right"] = "right" if title in right else "left"
        table.add_column(title, overflow="fold", justify=justify, no_wrap=title in whole)
    for cells in rows:
        table.add_row(*[Text(printable(str(cell))) for cell in cells])
    return table


# ---- text ----------------------------------------------------------------------------------------


_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")


def printable(text: str) -> str:
    """Return the text with control characters escaped.

    Unescaped control characters in printed data could control the terminal.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def size_text(count: int) -> str:
    """Return a number of bytes as text, with a binary unit and one decimal."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count} bytes" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


# ---- progress ------------------------------------------------------------------------------------
# Progress is shown as a bar on a terminal, and as a line every two seconds elsewhere.


_PLAIN_SECONDS: Final = 2.0


class ProgressLine:
    """Shows progress on stderr: one bar for each step on a terminal, lines of text elsewhere."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._is_plain = is_quiet or not sys.stderr.isatty()
        self._is_quiet = is_quiet
        self._bars: dict[str, TaskID] = {}
        self._printed_at = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=self._is_plain,
            transient=True,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def show(self, what: str, done: int, total: int) -> None:
        """Show the progress of the step `what`. A total of 0 means that the total is unknown."""
        if self._is_plain:
            self._print_line(what, done, total)
            return
        if what not in self._bars:
            self._bars[what] = self._progress.add_task(what, total=total or None)
        self._progress.update(self._bars[what], completed=done, total=total or None)

    def _print_line(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        is_done = 0 < total <= done
        if self._is_quiet or is_done or now - self._printed_at < _PLAIN_SECONDS:
            return
        self._printed_at = now
        share = f"{100 * done // total} %" if total else f"{done:,} rows"
        click.echo(f"reading {what}: {share}", err=True)


# ---- how a command ends --------------------------------------------------------------------------


EXIT_REFUSED: Final = 1
EXIT_STOPPED: Final = 3
EXIT_USAGE: Final = 64
EXIT_CORRUPT: Final = CorruptData.exit_code
EXIT_NO_INPUT: Final = 66
EXIT_UNAVAILABLE: Final = 69
EXIT_NOT_EXACTLY_ONCE: Final = 70
EXIT_NOT_UNDERSTOOD: Final = 70
EXIT_DISK: Final = DiskFailed.exit_code
EXIT_INTERRUPTED: Final = 130


# The errors of a write to a file that is full, too large or closed.
_OUTPUT_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


def output_error(error: OSError) -> str | None:
    """Return the message for an error of the output, or None if it is an error of something else.

    An error of the output has no file name.
    """
    if error.filename is not None or error.errno not in _OUTPUT_ERRORS:
        return None
    return f"the output cannot be written: {error.strerror}"


class ChangingCommand(click.Command):
    """A command that changes something. If its output cannot be written, the message says so."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        Raises CommandRefused if the output cannot be written.
        """
        try:
            return super().invoke(ctx)
        except OSError as error:
            message = output_error(error)
            if message is None:
                raise
            raise CommandRefused(
                f"{message}; what the command has already changed stays changed", EXIT_DISK
            ) from error


def confirm(question: str, refusal: str) -> None:
    """Ask the user a question. Raises CommandRefused with the text `refusal` if the user declines.

    Ctrl-C and the end of the input raise `click.Abort`, as everywhere.
    """
    if not click.confirm(question, err=True):
        raise CommandRefused(refusal, EXIT_REFUSED)


class CommandRefused(click.ClickException):
    """An error that ends the command with an exit code.

    The message says what is wrong and what to do.
    """

    def __init__(self, message: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(message)
        self.code = exit_code
