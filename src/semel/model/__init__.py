"""Values, commands, outcomes, limits and errors: used by every other package.

Nothing here does I/O, reads a clock or draws a random number.
"""
