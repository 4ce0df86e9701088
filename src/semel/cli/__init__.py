"""The command line: `semel COMMAND`. Every command has its own module."""
