"""Starts a Spark session, and sets up its Java, its Python, its addresses and its logs."""

import os
import re
import sys
from pathlib import Path
from typing import Any, Final

from pyspark.core.context import SparkContext
from pyspark.sql import SparkSession

from semel.spark.data_source import SemelDataSource
from semel.spark.runtime.environment import check_worker_python, ensure_java

DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",  # the timestamps of messages are in UTC, too
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# Defaults that are used only with a local master. A cluster has its own values for these settings.
LOCAL_DEFAULTS: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",  # Spark's default of 200 makes small batches slow
}
_OPTIONS: Final = "spark.driver.extraJavaOptions"
_OPTION_REDACTION: Final = "spark.sql.redaction.options.regex"
# The settings that select which options Spark redacts, with their defaults.
_REDACTIONS: Final = {
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key",
    _OPTION_REDACTION: "(?i)url",
}
_LOGS: Final = Path(__file__).with_name("log4j2.properties").as_uri()


def session(app: str = "semel", master: str = "local[*,4]", **conf: Any) -> SparkSession:
    """Start a Spark session, or return the session that is already running.

    `conf` contains Spark settings: `sql_shuffle_partitions=8` sets `spark.sql.shuffle.partitions`.
    A name that already contains dots is used as it is.

    If a session is already running, `app` and `master` are ignored, and `conf` is set on that
    session. Raises ValueError if `conf` has a setting that cannot change in a running session.

    After `stop()`, the next session runs in the same JVM. Therefore new values for settings of the
    JVM itself, such as `spark.driver.memory`, have no effect.
    """
    # The default master tries a task up to four times. With `local[*]`, a query fails as soon as a
    # task fails once.

    settings = {_name(key): _text(value) for key, value in conf.items()}
    _drop_ended_jvm()
    running = _running()
    spark = _start(app, master, settings) if running is None else _changed(running, settings)
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Register `format("semel")` with a Spark session.

    Usually this call is not necessary, because Spark finds the format itself. But if any installed
    package named `pyspark_...` cannot be imported, Spark does not find the format.

    The session becomes the active session of this thread. If the settings of the session do not
    hide the option `token` in plans, a setting is changed so that they do. Raises WrongPython if a
    local session uses a Python that cannot run its tasks.
    """
    context = getattr(spark, "_sc", None)  # a Spark Connect session has no context
    if context is not None:
        if str(context.master).startswith("local"):
            check_worker_python(context.pythonExec)
        make_active(spark)
    _hide_tokens(spark)
    spark.dataSource.register(SemelDataSource)


def _hide_tokens(spark: SparkSession) -> None:
    """Make Spark redact the option `token` in plans, in its logs, in its UI and in the event log.

    Spark redacts the options whose names match one of two settings. The default of the first
    matches `token`, but an administrator can have replaced it.
    """
    patterns = [str(spark.conf.get(name, default)) for name, default in _REDACTIONS.items()]
    if not any(map(_matches_token, patterns)):
        spark.conf.set(_OPTION_REDACTION, f"{patterns[1]}|(?i:token)")


def _matches_token(pattern: str) -> bool:
    try:
        return re.search(pattern, "token") is not None
    except re.error:  # a pattern that only Java understands
        return False


def make_active(spark: SparkSession) -> None:
    """Make `spark` this thread's active session. Spark looks up a sink's format in that session."""
    jvm: Any = spark._jvm
    jvm.SparkSession.setActiveSession(spark._jsparkSession)


def _start(app: str, master: str, conf: dict[str, str]) -> SparkSession:
    if SparkContext._gateway is None:  # a running JVM does not read JAVA_HOME
        ensure_java()
    is_local = master.startswith("local")
    _choose_python(is_local=is_local)
    settings: dict[str, Any] = {**DEFAULTS, **(LOCAL_DEFAULTS if is_local else {}), **conf}
    settings[_OPTIONS] = f"-Dlog4j2.configurationFile={_LOGS} {settings.get(_OPTIONS, '')}".strip()
    builder = SparkSession.Builder().appName(app).master(master)
    return builder.config(map=settings).getOrCreate()


def _choose_python(*, is_local: bool) -> None:
    """Make Spark run tasks with the Python of this process, not with the `python3` on the PATH.

    On a cluster, an existing value of PYSPARK_PYTHON is kept, because the path of Python can be
    different there.
    """
    if is_local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _drop_ended_jvm() -> None:
    """Make pyspark forget a JVM that has ended. Otherwise pyspark would try to use that JVM."""
    gateway = SparkContext._gateway
    if gateway is None or gateway.proc is None or gateway.proc.poll() is None:
        return
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def _running() -> SparkSession | None:
    spark = SparkSession._instantiatedSession
    return None if spark is None or spark._sc._jsc is None else spark


def _changed(spark: SparkSession, conf: dict[str, str]) -> SparkSession:
    new = {key: value for key, value in conf.items() if spark.conf.get(key, None) != value}
    fixed = [key for key in new if not spark.conf.isModifiable(key)]
    if fixed:
        raise ValueError(
            f"a running Spark session cannot change the settings {', '.join(fixed)}:"
            " call stop() on the session first"
        )
    for key, value in new.items():
        spark.conf.set(key, value)
    return spark


def _name(key: str) -> str:
    if "." in key:
        return key
    name = key.replace("_", ".")
    return name if name.startswith("spark.") else f"spark.{name}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
