"""Values, commands, outcomes, limits and errors. All other packages use this package.

Nothing here does I/O, reads a clock or draws a random number.
"""
