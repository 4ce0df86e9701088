"""Kills at every step of a wake, and workers that must process everything exactly once."""
