"""Benchmarks of the engine: `python -m bench [name ...] [--quick] [--json FILE]`.

Whatever is compared is measured in turns in one run, so that a noisy machine is noisy for both
sides. Nothing here passes or fails by speed.
"""
