"""The version of semel, and how to install it. Any package of semel can import this module."""

__version__ = "0.1.0"


def install_advice(arguments: str) -> str:
    """Return a text that tells the user how to install semel with pip.

    `arguments` are the arguments of `pip install`, which the user runs in a checkout of semel.
    """
    return f"in a checkout of semel, run: pip install {arguments}"
