"""A Spark session that runs with no further setup: Java, Python, addresses and logs."""

import os
import sys
from pathlib import Path
from typing import Any, Final

from pyspark.core.context import SparkContext
from pyspark.sql import SparkSession

from semel.spark.data_source import SemelDataSource
from semel.spark.runtime.environment import check_worker_python, ensure_java

DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",  # as the timestamps of messages
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# For a driver and its tasks in one process; on a cluster these are the cluster's business.
LOCAL_DEFAULTS: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",  # Spark's own 200 make each small batch slow
}
_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOGS: Final = Path(__file__).with_name("log4j2.properties").as_uri()


def session(app: str = "semel", master: str = "local[*,4]", **conf: Any) -> SparkSession:
    """Start a Spark session, or return the one that runs.

    `conf` sets Spark's configuration. A keyword stands for the name with dots for underscores and
    `spark.` in front: `sql_shuffle_partitions=8`. A name that has dots is taken as it is:
    `**{"spark.sql.shuffle.partitions": "8"}`. A session that runs is returned whatever `app` and
    `master` say, with `conf` set on it; what cannot be set while it runs is an error. After
    `stop()` a new one is made, in the same JVM: only options of the JVM itself stay as they were.
    A JVM that died is replaced.

    The default master runs on all cores and tries a task four times; plain `local[*]` gives up at
    the first failure of a task.
    """
    named = {_name(key): _text(value) for key, value in conf.items()}
    _forget_dead_jvm()
    running = _running()
    spark = _start(app, master, named) if running is None else _changed(running, named)
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make `format("semel")` known to a session that did not find it by itself.

    Spark finds it where its Python can import `pyspark_semel`, unless another package whose name
    begins with `pyspark_` is broken. A session whose tasks would run another Python is refused.
    In another thread than the one that made the session, it makes it the thread's session.
    """
    context = getattr(spark, "_sc", None)  # a session of Spark Connect has none
    if context is not None:
        if str(context.master).startswith("local"):
            check_worker_python(context.pythonExec)
        make_active(spark)
    spark.dataSource.register(SemelDataSource)


def make_active(spark: SparkSession) -> None:
    """Make this the session of the thread: Spark looks for a sink's format in that one."""
    jvm: Any = spark._jvm
    jvm.SparkSession.setActiveSession(spark._jsparkSession)


def _start(app: str, master: str, conf: dict[str, str]) -> SparkSession:
    if SparkContext._gateway is None:  # afterwards the JVM has its environment
        ensure_java()
    is_local = master.startswith("local")
    _choose_python(is_local=is_local)
    settings = {**DEFAULTS, **(LOCAL_DEFAULTS if is_local else {}), **conf}
    settings[_OPTIONS] = f"-Dlog4j2.configurationFile={_LOGS} {settings.get(_OPTIONS, '')}".strip()
    builder = SparkSession.Builder().appName(app).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _choose_python(*, is_local: bool) -> None:
    """Run tasks with this Python; Spark would take the first `python3` of the PATH.

    On a cluster the executors may know theirs by another path, so a choice made there stands.
    """
    if is_local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _forget_dead_jvm() -> None:
    """Let go of a JVM that was killed; pyspark itself would try to talk to it for ever."""
    gateway = SparkContext._gateway
    if gateway is None or gateway.proc is None or gateway.proc.poll() is None:
        return
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def _running() -> SparkSession | None:
    found = SparkSession._instantiatedSession
    return None if found is None or found._sc._jsc is None else found


def _changed(spark: SparkSession, conf: dict[str, str]) -> SparkSession:
    new = {key: value for key, value in conf.items() if spark.conf.get(key, None) != value}
    fixed = [key for key in new if not spark.conf.isModifiable(key)]
    if fixed:
        raise ValueError(f"{', '.join(fixed)} cannot change while a session runs; stop() it first")
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
