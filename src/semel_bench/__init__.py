"""Benchmarks for semel. Run them with `semel bench [NAME]...` or `python -m semel_bench [NAME]...`.

Programs that are compared are measured alternately in the same run, so that a noisy machine affects
all of them equally. The targets come from the design. A benchmark that misses a target does not
fail.
"""

__version__ = "0.1.0"  # the version of semel that the benchmarks measure
