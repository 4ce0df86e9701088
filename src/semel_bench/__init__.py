"""The benchmarks of semel: `semel bench [NAME]...`, or `python -m semel_bench [NAME]...`.

The sides of a comparison run alternately in one run, so that a noisy machine affects all of them
equally. The targets come from the design. A benchmark does not fail because it misses a target.
"""

__version__ = "0.1.0"  # the version of semel that it measures
