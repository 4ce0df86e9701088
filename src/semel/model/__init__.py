"""Values, commands, outcomes, limits and errors. Every other package uses this one.

Nothing here does I/O, reads a clock or draws a random number.
"""
