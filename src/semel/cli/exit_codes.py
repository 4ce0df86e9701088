"""Exit codes. Those from 64 to 78 are the ones of sysexits.h."""

from typing import Final

import click

from semel.model.errors import CorruptData, DiskFailed

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


class CommandRefused(click.ClickException):
    """The command ends with an exit code; the message says what is wrong and what to do."""

    def __init__(self, message: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(message)
        self.code = exit_code
