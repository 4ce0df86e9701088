"""The command line: `semel COMMAND`. Related commands share a module."""
