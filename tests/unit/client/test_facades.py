"""The generated sync client is current and has the same methods as the async client."""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from semel import AsyncClient, Client
from tests.facades import COMMAND, MODULES, NAMES, SYNC, generate, sync_words

# Names in annotations that differ between the async and the sync client.
ANNOTATIONS = {"AsyncIterator": "Iterator", "AsyncTransform": "SyncTransform", "aio": "sync"}


def classes() -> Iterator[tuple[type, type]]:
    for module in MODULES:
        aio = import_module(f"semel.client.aio.{module}")
        sync = import_module(f"semel.client.sync.{module}")
        for name, member in vars(aio).items():
            if inspect.isclass(member) and member.__module__ == aio.__name__:
                yield member, getattr(sync, NAMES.get(name, name))


def methods(facade: type) -> dict[str, Any]:
    return {
        NAMES.get(name, name): member
        for name, member in vars(facade).items()
        if not name.startswith("_") and (callable(member) or isinstance(member, property))
    }


def signature(method: Any, *, is_async: bool) -> list[tuple[str, Any, Any, str]]:
    found = inspect.signature(method)
    printed: list[tuple[str, Any, Any, str]] = [
        (each.name, each.kind, each.default, str(each.annotation))
        for each in found.parameters.values()
    ]
    printed.append(("return", None, None, str(found.return_annotation)))
    if not is_async:
        return printed
    words = NAMES | ANNOTATIONS
    return [
        (name, kind, default, re.sub(r"\w+", lambda word: words.get(word[0], word[0]), annotation))
        for name, kind, default, annotation in printed
    ]


@pytest.mark.parametrize("name", MODULES)
def test_the_generated_module_is_current(name: str) -> None:
    text = (SYNC / f"{name}.py").read_text()
    assert text == generate(name), f"stale: run `{COMMAND}`"
    assert "async" not in re.sub("AsyncClient|AsyncProducer", "", text).lower()
    assert "await" not in text


def test_nothing_else_is_in_the_generated_package() -> None:
    assert {path.stem for path in SYNC.glob("*.py")} == {*MODULES, "__init__"}


def test_docstrings_lose_the_words_for_asyncio() -> None:
    assert sync_words("`await a.b()` in its `async with` block") == "`a.b()` in its `with` block"


def test_both_clients_have_the_same_public_methods_with_the_same_parameters() -> None:
    compared = 0
    for aio, sync in classes():
        assert methods(aio).keys() == methods(sync).keys()
        for name, method in methods(aio).items():
            twin = methods(sync)[name]
            assert type(method) is type(twin)
            if not isinstance(method, property):
                assert not inspect.iscoroutinefunction(twin)
                if name not in (
                    "process",
                    "worker",
                ):  # only the async one takes a coroutine function
                    expected = signature(method, is_async=True)
                    assert signature(twin, is_async=False) == expected, (aio, name)
                compared += 1
    assert compared > 50


def test_the_two_functions_to_process_differ_in_the_function_and_the_streams_only() -> None:
    parameters = [
        dict(inspect.signature(each.process).parameters) for each in (AsyncClient, Client)
    ]
    for name in ("function", "inputs"):
        assert parameters[0].pop(name) != parameters[1].pop(name)
    assert parameters[0] == parameters[1]
