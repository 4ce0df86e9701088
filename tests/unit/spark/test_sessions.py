"""Registering the format, with fake sessions."""

from types import SimpleNamespace
from typing import Any

import pytest

from semel.spark.data_source import SemelDataSource
from semel.spark.runtime import session
from semel.spark.runtime.environment import WrongPython


class Settings(dict[str, str]):
    """The settings of a session: `get` with a default, and `set`."""

    set = dict.__setitem__


def stand_in(taken: list[type], settings: Settings | None = None, **parts: Any) -> Any:
    source = SimpleNamespace(register=taken.append)
    return SimpleNamespace(dataSource=source, conf=settings or Settings(), **parts)


def test_a_session_of_spark_connect_is_given_the_format() -> None:
    taken: list[type] = []
    session.register(stand_in(taken))
    assert taken == [SemelDataSource]


def test_on_a_cluster_the_python_of_tasks_is_not_looked_for_here() -> None:
    taken: list[type] = []
    context = SimpleNamespace(master="spark://host:7077", pythonExec="/only/there/python")
    active: list[str] = []
    jvm = SimpleNamespace(SparkSession=SimpleNamespace(setActiveSession=active.append))
    session.register(stand_in(taken, _sc=context, _jvm=jvm, _jsparkSession="this"))
    assert taken == [SemelDataSource]
    assert active == ["this"]


OPTIONS = "spark.sql.redaction.options.regex"


@pytest.mark.parametrize(
    ("given", "option_pattern"),
    [
        ({}, None),
        ({"spark.redaction.regex": "(?i)password|token"}, None),
        ({"spark.redaction.regex": "(?i)password", OPTIONS: "(?i)TOKEN"}, "(?i)TOKEN"),
        ({"spark.redaction.regex": "(?i)password"}, "(?i)url|(?i:token)"),
        ({"spark.redaction.regex": "(?i)", OPTIONS: "x"}, "x"),  # an empty pattern hides all
        ({"spark.redaction.regex": "\\Q[", OPTIONS: "x"}, "x|(?i:token)"),  # only Java has \\Q
    ],
)
def test_the_option_token_is_redacted_whatever_the_settings_say(
    given: dict[str, str], option_pattern: str | None
) -> None:
    settings = Settings(given)
    session.register(stand_in([], settings))
    assert settings.get(OPTIONS) == option_pattern


def test_a_local_session_with_another_python_is_refused() -> None:
    taken: list[type] = []
    context = SimpleNamespace(master="local[2,4]", pythonExec="/no/such/python")
    with pytest.raises(WrongPython, match="/no/such/python, which does not run"):
        session.register(stand_in(taken, _sc=context))
    assert taken == []
