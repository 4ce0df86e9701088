"""The version of semel, and how to install it. Every package of semel may import this module."""

__version__ = "0.1.0"


def install_advice(arguments: str) -> str:
    """Return how to install semel from a checkout, because it is not on PyPI."""
    return f"in a checkout of semel, run: pip install {arguments}"
