"""The version of semel, which every part may import."""

__version__ = "0.1.0"
