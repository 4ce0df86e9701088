"""`python -m semel_bench` runs `semel bench`."""

import sys

from semel.cli.main import cli

cli.main(["bench", *sys.argv[1:]], prog_name="semel")
