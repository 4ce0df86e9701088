"""What a function takes, told by its parameters and their annotations. Pure.

Annotations are compared by name, so that neither Arrow nor Spark need be there to read them.
"""

import inspect
import typing
from collections.abc import Callable, Iterable
from typing import Any, Final

from semel.pipeline.graph.processors import FunctionKind, Processor, Role

_KINDS: Final = {"RecordBatch": FunctionKind.ARROW, "DataFrame": FunctionKind.DATAFRAME}
CURSOR: Final = "cursor"
BINDING: Final = "binding"
_POSITIONAL: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Name the parameters of a function."""
    return list(inspect.signature(function).parameters.values())


def kind_of(processor: Processor) -> FunctionKind:
    """Tell what a processor's function takes, by the annotation of its first parameter."""
    if processor.role is Role.SOURCE:
        return FunctionKind.MESSAGE
    found = parameters(processor.function)
    if not found:
        return FunctionKind.MESSAGE
    hint = _hint(processor.function, found[0])
    if hint is inspect.Parameter.empty and processor.role is Role.SINK:
        return FunctionKind.ANY
    return _kind(hint)


def takes_cursor(function: Callable[..., Any]) -> bool:
    """Tell whether a source is told where to go on."""
    return any(one.name == CURSOR for one in parameters(function))


def takes_binding(function: Callable[..., Any]) -> bool:
    """Tell whether a function of alternatives is told which input its message is of."""
    found = parameters(function)
    return len(found) > 1 and found[1].name == BINDING


def signature_problems(processor: Processor) -> Iterable[str]:
    """Say what is wrong with the function of a processor."""
    function: Any = processor.function
    if not callable(function):
        yield f"its function is {function!r}, which cannot be called; give it a function"
        return
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        yield "its function is async; a processor runs on a thread of its own: use a plain def"
        return
    try:
        found = parameters(function)
    except (TypeError, ValueError):
        yield f"the parameters of {function!r} are not known; wrap it in a def of your own"
        return
    if processor.role is Role.SOURCE:
        yield from _of_source(function, found)
    elif processor.role is Role.SINK:
        yield from _of_sink(found)
    else:
        yield from _of_stream(processor, found)


def _of_source(function: Callable[..., Any], found: list[inspect.Parameter]) -> Iterable[str]:
    if not inspect.isgeneratorfunction(function):
        yield "a source is a generator: its function must yield messages"
    if [one.name for one in found if _is_needed(one)] not in ([], [CURSOR]):
        yield (
            f"a source takes nothing and yields messages, or takes ({CURSOR}) and yields"
            f" ({CURSOR}, message), not {_listed(found)}"
        )


def _of_sink(found: list[inspect.Parameter]) -> Iterable[str]:
    if not _takes(found, 2):
        yield f"a sink takes (df, delivery), not {_listed(found)}"


def _of_stream(processor: Processor, found: list[inspect.Parameter]) -> Iterable[str]:
    if processor.is_join:
        wanted, named = set(processor.inputs), {one.name for one in found if _is_needed(one)}
        if wanted != named or any(one.kind is one.POSITIONAL_ONLY for one in found):
            names = ", ".join(processor.inputs)
            yield (
                f"the function of a join has a parameter for every input, by its binding:"
                f" ({names}), not {_listed(found)}; in_={{name: stream}} gives the names"
            )
            return
    elif not _takes(found, 1) and not (
        processor.is_alternatives and takes_binding(processor.function) and _takes(found, 2)
    ):
        more = f", or (message, {BINDING})" if processor.is_alternatives else ""
        yield f"its function takes one message{more}, not {_listed(found)}"
        return
    kinds = {_kind(_hint(processor.function, one)) for one in found if one.name != BINDING}
    if len(kinds) > 1:
        yield "its parameters are annotated for different kinds; all must be the same"


def _takes(found: list[inspect.Parameter], count: int) -> bool:
    """Whether a function can be called with so many values, no more and no less needed."""
    if any(one.kind is one.KEYWORD_ONLY and one.default is one.empty for one in found):
        return False
    plain = [one for one in found if one.kind in _POSITIONAL]
    needed = sum(one.default is one.empty for one in plain)
    has_rest = any(one.kind is one.VAR_POSITIONAL for one in found)
    return needed <= count and (has_rest or len(plain) >= count)


def _is_needed(parameter: inspect.Parameter) -> bool:
    is_rest = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not is_rest


def _listed(found: list[inspect.Parameter]) -> str:
    return f"({', '.join(one.name for one in found)})"


def _hint(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # noqa: BLE001 - a name in it is not there at run time: read it as text
        hints = {}
    return hints.get(parameter.name, parameter.annotation)


def _kind(hint: Any) -> FunctionKind:
    text = hint if isinstance(hint, str) else getattr(hint, "__name__", "")
    return _KINDS.get(text.strip("'\"").rpartition(".")[2], FunctionKind.MESSAGE)
