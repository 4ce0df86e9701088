"""The version of semel and how to install its parts, which every part may import."""

__version__ = "0.1.0"


def install_advice(arguments: str) -> str:
    """Return the command that installs a part of semel, which is not on PyPI."""
    return f"in a checkout of semel, run: pip install {arguments}"
