"""Values, commands, outcomes, limits and errors: what every other package speaks in.

Nothing here does I/O, reads a clock or draws a random number.
"""
