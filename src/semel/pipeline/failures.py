"""Failed calls of a processor's function: what is known about the error.

`wrap_error` lets a function add data of its own to the exceptions that leave a block. This module
does no I/O.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from semel.client.dead_letters import escaped_surrogates

# ---- context -------------------------------------------------------------------------------------


_CONTEXT: Final = "__semel_context__"  # the attribute of an exception that keeps its context


@contextmanager
def wrap_error(**context: Any) -> Iterator[None]:
    """Add `context` to every exception that leaves the block. The exception is raised unchanged.

    The context is a member of the message in the error stream. If the processor has no error
    stream, the reason why it stopped contains the context. In nested blocks, the values of the
    inner block win. A value that JSON cannot represent is replaced with its `repr`.
    """
    try:
        yield
    except Exception as error:
        add_context(error, context)
        raise


def add_context(error: BaseException, context: Mapping[str, Any]) -> None:
    """Add `context` to an exception. The exception keeps the values that it already has."""
    setattr(error, _CONTEXT, {**context, **getattr(error, _CONTEXT, {})})


def take_context(error: BaseException) -> dict[str, Any]:
    """Return the context of an exception and of the exceptions that caused it, as JSON values.

    The values of a cause win, because it was raised further inside. The context is removed from
    the exceptions: a function can raise the same object again, for another message.
    """
    context: dict[str, Any] = {}
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        context |= vars(link).pop(_CONTEXT, {})
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return {name: _as_json(value) for name, value in context.items()}


def _as_json(value: Any) -> Any:
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except Exception:  # noqa: BLE001 - the user's objects can raise anything
        return _printed(value)


def _printed(value: Any) -> str:
    try:
        return escaped_surrogates(repr(value))
    except Exception as error:  # noqa: BLE001 - the user's `__repr__` can raise anything
        return f"a {type(value).__name__} whose __repr__ raised {type(error).__name__}"


def explained(error: BaseException) -> str:
    """Return the text of an exception, followed by its context if it has one."""
    text, context = text_of(error), take_context(error)
    return f"{text} (context: {msgspec.json.encode(context).decode()})" if context else text


def text_of(error: BaseException) -> str:
    """Return `str(error)`, or a replacement text if the error's `__str__` fails."""
    try:
        return str(error)
    except Exception as another:  # noqa: BLE001 - the user's `__str__` can raise anything
        return f"the error has no text, because its __str__ raised {type(another).__name__}"
