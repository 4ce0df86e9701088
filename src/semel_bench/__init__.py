"""The benchmarks of semel: `semel bench [NAME]...`, or `python -m semel_bench [NAME]...`.

Whatever is compared runs alternately in one run, so that a noisy machine disturbs all sides alike.
Targets are those of the design; no benchmark passes or fails because of its speed.
"""

__version__ = "0.1.0"  # that of the semel it measures
