"""`python -m semel`: the same as `semel`."""

from semel.cli.main import main

main()
