"""Uses a token in every way that Spark has. Arguments: WAY URL STREAM DIRECTORY.

The token is in the file that TOKEN_FILE names, so that the command line does not have it.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from pyspark.sql import DataFrame, SparkSession

from semel.client.credentials import Secret, TokenFile
from semel.pipeline import Graph
from semel.pipeline.runner import run
from semel.spark import commit_batch
from semel.spark.runtime.session import session

PAGES = ("/SQL/", "/jobs/", "/stages/", "/environment/", "/StreamingQuery/")


def start(folder: Path, *, is_replacing: bool) -> SparkSession:
    logs = (folder / "log4j2.properties").as_uri()
    settings = {
        "spark.driver.extraJavaOptions": (
            f"-XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile={logs}"
        ),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.sql.planChangeLog.level": "warn",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    if is_replacing:
        settings["spark.redaction.regex"] = "(?i)password"
    return session("tokens", "local[2,4]", **settings)


def failing(call: Callable[[], object], expected: str) -> None:
    """Print the error of a call, which must contain a text."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - of Spark
        print(f"{error} {error!r}")
        assert expected in str(error), error
    else:
        raise AssertionError(f"no error with {expected}")


def show(frame: DataFrame) -> None:
    for mode in ("extended", "codegen", "cost", "formatted"):
        frame.explain(mode)
    print(repr(frame), frame._jdf.queryExecution().toString())


def use(spark: SparkSession, stream: str, folder: Path, server: dict[str, Any]) -> None:
    """Read and write, in batches and in queries, also with failures."""
    rows = spark.read.format("semel").options(**server, stream=stream).load()
    show(rows)
    assert rows.count() == 20
    values = rows.select("value")

    def write(frame: DataFrame, mode: str = "append", **options: str) -> None:
        frame.write.format("semel").options(**server, stream=f"{stream}-out", **options).mode(
            mode
        ).save()

    def query(source: str) -> None:
        live = spark.readStream.format("semel").options(**server, stream=source).load()
        show(live)
        to = {"stream": f"{stream}-live", "checkpointLocation": str(folder / "checkpoint")}
        writer = live.select("value").writeStream.format("semel").options(**server, **to)
        running = writer.trigger(availableNow=True).start()
        running.awaitTermination()
        running.explain(extended=True)
        print(running.lastProgress, running.status)

    write(values)
    query(stream)
    commit_batch(0, {f"{stream}-batch": values}, app=f"app-{stream}", **server)
    rows.createOrReplaceTempView("messages")
    spark.sql("EXPLAIN EXTENDED SELECT value FROM messages").show(truncate=False)
    failing(lambda: query(f"{stream}-none"), "StreamMissing")
    failing(
        lambda: write(rows.selectExpr("string(raise_error('raise_error')) value")), "raise_error"
    )
    failing(lambda: write(values, "overwrite"), "cannot be overwritten")
    failing(lambda: write(values, nonsense="1"), "unknown option")
    visit(spark)


def visit(spark: SparkSession) -> None:
    """Print the pages of the UI."""
    context = spark.sparkContext
    api = f"/api/v1/applications/{context.applicationId}"
    executions = [f"/SQL/execution/?id={number}" for number in range(8)]
    details = f"{api}/sql?details=true&planDescription=true&length=1000"
    for page in (*PAGES, *executions, details, f"{api}/environment"):
        try:
            with urlopen(f"{context.uiWebUrl}{page}") as response:
                print("UI", response.status, page, response.read().decode())
        except HTTPError as error:
            print("UI", error.code, page)


def run_graph(url: str, stream: str, folder: Path, token: Any) -> None:
    """Run a graph with a function for messages and a stateful one for DataFrames."""
    graph = Graph(stream, url=url)
    graph.stream("p", in_=stream, out=f"{stream}-p")(lambda value: value)

    @graph.stream("q", in_=f"{stream}-p", out=f"{stream}-q", stateful=True)
    def q(rows: DataFrame) -> DataFrame:
        return rows.select("value")

    gauges = run(
        graph,
        token=token,
        engine="spark",
        checkpoints=str(folder / "checkpoint"),
    )
    for name, gauge in gauges.items():
        print("ENDED", name, gauge.read)


def main(way: str, url: str, stream: str, folder: Path) -> None:
    file = os.environ.pop("TOKEN_FILE")
    token = Secret(Path(file).read_text())
    spark = start(folder, is_replacing=way == "replaced-settings")
    if way.startswith("pipeline"):
        run_graph(url, stream, folder, TokenFile(file) if way == "pipeline-file" else token)
    else:
        options = {"file": {"tokenFile": file}, "environment": {}}.get(way, {"token": token})
        use(spark, stream, folder, {"url": url, **options})
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
