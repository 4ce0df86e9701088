"""Makes `python -m semel` run the same program as the command `semel`."""

from semel.cli.main import main

main()
